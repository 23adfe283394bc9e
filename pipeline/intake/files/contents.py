"""The rows of a file or of a member of an archive: of JSON, a table or a document, and an export's records.

The first records determine if a content is a program's export.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BufferedReader
from itertools import islice
from typing import Any, BinaryIO

import orjson

from pipeline.core.json_values import JSON_SPACE, array_rows, stream_rows, too_long_row
from pipeline.core.jsonl import BadLine, parse_value, read_raw_lines
from pipeline.intake.exports import mbox
from pipeline.intake.exports.export import HEAD_RECORDS, MAX_RECORD_BYTES, Export, Head, Record
from pipeline.intake.exports.registry import may_be_large
from pipeline.intake.files.columnar import arrow_rows, parquet_rows
from pipeline.intake.files.columns import table_rows
from pipeline.intake.files.documents import DOCUMENTS, document_rows
from pipeline.intake.files.files import (
    ARROW,
    MAILBOX,
    PACKED_TABLES,
    SNIFFED,
    TEXT_TABLES,
    Content,
    kind_in,
    layout_of,
)
from pipeline.intake.files.mailboxes import mails
from pipeline.intake.files.misnamed import NOTE, REFUSED, refuse
from pipeline.intake.files.tables import Row, csv_rows
from pipeline.intake.files.workbooks import workbook_rows
from pipeline.intake.rows.own_rows import export_in

# Number of the record from 1, offset in bytes (None: unknown), JSON or the reason why there is none.
RawRow = tuple[int, int | None, bytes | BadLine]
# Errors in a row that are allowed in the parts of an export's record that no row keeps.
ROWS_ONLY = ("control_character", "number_out_of_range", "too_deep")


def content_rows(content: Content, layout: str, max_bytes: int, notes: Counter[str]) -> Iterator[RawRow]:
    """Yield the rows of a file that is not an export."""
    if layout in REFUSED:
        raise refuse(layout)
    with content.opened() as file:
        if layout in DOCUMENTS:
            yield from of_one_record(document_rows(file, notes))
        elif layout in (*TEXT_TABLES, *PACKED_TABLES):
            yield from numbered(_records(layout, file, max_bytes, notes))
        else:
            yield from _json_rows(file, layout, max_bytes, notes)


def _json_rows(file: BufferedReader, layout: str, max_bytes: int, notes: Counter[str]) -> Iterator[RawRow]:
    """Yield the rows of a JSON file that is open at its beginning."""
    if layout == "array":
        yield from array_rows(file, max_bytes)
    elif layout == "stream":
        yield from stream_rows(file, max_bytes)
    elif layout == "object":
        text = file.read()
        row = text[text.index(b"{") :].rstrip(JSON_SPACE)
        by_columns = table_rows(row)
        if by_columns is None:
            yield 1, text.index(b"{"), row
        else:
            yield from numbered(by_columns)
    else:
        yield from _plain_lines(file, max_bytes, notes)


def _records(kind: str, file: BufferedReader, max_bytes: int, notes: Counter[str]) -> Iterator[Row]:
    """Yield the records of a table with the suffix `kind`."""
    if kind == ".parquet":
        return parquet_rows(file, max_bytes)
    if kind in ARROW:
        return arrow_rows(file, max_bytes)
    if kind == ".xlsx":
        return workbook_rows(file, max_bytes, notes)
    return csv_rows(file, max_bytes, notes, "\t" if kind == ".tsv" else ",")


def _plain_lines(file: BinaryIO, max_bytes: int, notes: Counter[str]) -> Iterator[RawRow]:
    for number, offset, line in read_raw_lines(file, max_bytes):
        if line is None:
            yield number, offset, too_long_row(max_bytes)
            continue
        notes["crlf"] += line.endswith(b"\r")
        row = line.removesuffix(b"\r")
        yield number, offset, row if row.strip() else BadLine("blank", "nothing on this line")


def of_one_record(rows: Iterable[Row]) -> Iterator[RawRow]:
    """Yield the rows of a document, which is one record."""
    for row in rows:
        yield 1, None, row


def numbered(rows: Iterable[Row]) -> Iterator[RawRow]:
    """Yield rows with their numbers. Their offsets are not known."""
    for number, row in enumerate(rows, start=1):
        yield number, None, row


def recognized(content: Content, max_bytes: int, notes: Counter[str]) -> tuple[str, Export | None]:
    """Return a file's layout and its export, by the first records; None for rows in a format or a table."""
    if content.kind == MAILBOX:
        return mbox.MAILBOX, mbox.EXPORT
    kind = content.kind
    if kind in DOCUMENTS:
        kind = kind_in(content) or kind
        notes[NOTE] += kind != content.kind and kind not in REFUSED
    if kind != ".json":
        return kind, None
    layout = layout_of(content, max_bytes, notes)
    head = _head(content, layout, max_bytes)
    if head.objects() or not may_be_large(_beginning(content)):
        return layout, export_in(head)
    # A record may be longer than a row if it contains a channel, or all branches of a chat.
    large = layout_of(content, MAX_RECORD_BYTES, Counter())
    export = export_in(_head(content, large, MAX_RECORD_BYTES))
    return (large, export) if export else (layout, None)


def _beginning(content: Content) -> bytes:
    """Return the file's first bytes; none if they can't be read."""
    with suppress(BadLine, OSError), content.opened() as file:
        return file.read(SNIFFED)
    return b""


def _head(content: Content, layout: str, max_bytes: int) -> Head:
    """Return the file's first records. Errors occur again, and are reported, when the rows are read."""
    return Head(layout, tuple(readable(islice(records_of(content, layout, max_bytes), HEAD_RECORDS))))


def readable(records: Iterable[Record]) -> list[Any]:
    """Return the values of the records that can be read."""
    values = []
    with suppress(BadLine, OSError):
        for record in records:
            if not isinstance(record.value, BadLine):
                values.append(record.value)
    return values


def values_of(content: Content) -> list[Any]:
    """Return the values of a small JSON file that supplements an export, as far as it can be read."""
    with suppress(OSError):
        layout = layout_of(content, MAX_RECORD_BYTES, Counter())
        return readable(records_of(content, layout))
    return []


def records_of(content: Content, layout: str, max_bytes: int = MAX_RECORD_BYTES) -> Iterator[Record]:
    """Yield the records of a file."""
    with content.opened() as file:
        if layout == mbox.MAILBOX:
            yield from _letters(file)
            return
        yield from records_in(_json_rows(file, layout, max_bytes, Counter()))


def _letters(file: BufferedReader) -> Iterator[Record]:
    """Yield the mails of a mailbox as records."""
    yield from (Record(*mail) for mail in mails(file, MAX_RECORD_BYTES))


def records_in(rows: Iterable[RawRow]) -> Iterator[Record]:
    """Yield the records of the rows of an export. Blank lines are not records."""
    for number, offset, data in rows:
        value = data if isinstance(data, BadLine) else _value(data)
        if not isinstance(value, BadLine) or value.code != "blank":
            yield Record(number, offset, value)


def _value(data: bytes) -> Any | BadLine:
    """Return a record's JSON value, or the reason why it can't be parsed.

    Values that a row may not contain are refused when the export's row is read, because a record has parts
    that no row keeps: another branch with a control character, or a tree that is deeper than a row.
    """
    try:
        return parse_value(data)
    except BadLine as why:
        if why.code in ROWS_ONLY:
            with suppress(orjson.JSONDecodeError):
                return orjson.loads(data)
        return why
