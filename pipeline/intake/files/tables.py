"""The records of CSV and TSV files as JSON objects, with a key per column. Empty cells are left out."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from io import BufferedReader
from typing import Any, NamedTuple

import orjson

from pipeline.core.jsonl import BYTE_ORDER_MARK, BadLine
from pipeline.intake.files.encodings import NOT_UTF8
from pipeline.intake.rows.cells import cell_value
from pipeline.intake.rows.letter_case import known_names

FAULTS = {  # error messages of the csv module, and ours
    "new-line character": "a line ends with CR alone: write LF or CRLF",
    "expected after": "something stands between a quote and the next separator",
    "unexpected end": "a quote is never closed",
}
INSIDE = "a quote stands inside of a cell: put the cell in quotes, and write two for each inside"
NAMELESS = "the first line must name the columns: "
SEPARATORS = (",", ";", "\t", "|")
SEPARATOR_LINE = re.compile(rb'"?sep=(\t|[^\w\s"])"?\s*', re.IGNORECASE)  # line above the header, for Excel

Row = bytes | BadLine  # a JSON object's bytes, or the reason why there are none


class Columns(NamedTuple):
    """Columns in a table's header."""

    names: list[str]  # names from the first that is not empty
    unnamed: int  # columns before that: the row's number or name, as pandas and R write it


def csv_rows(file: BufferedReader, max_bytes: int, notes: Counter[str], separator: str) -> Iterator[Row]:
    """Yield each record below the header. Raises `BadLine` if the rest of the file can't be read.

    The header's cells are separated by `separator`, by the one in a first line `sep=;`, or by another of
    `SEPARATORS`. `notes` counts `index_column`, the records whose leading index is removed.

    A record ends at a line break with an even number of quotes before it, so a bad record of one line doesn't
    affect the others. The quotes of a bad record over several lines are doubtful, so the rest of the file is
    not read.
    """
    csv.field_size_limit(max(csv.field_size_limit(), max_bytes))
    records = _records(file, max_bytes)
    first, _ = next(records, (b"", 0))
    line = first and first.removeprefix(BYTE_ORDER_MARK)
    notes["bom"] += line != first
    given = line and SEPARATOR_LINE.fullmatch(line)
    if given:
        line, _ = next(records, (b"", 0))
    if line == b"":
        return
    separators = (given[1].decode(),) if given else (separator, *SEPARATORS)
    columns, separator = _header(line, separators, max_bytes, notes)
    for text, lines in records:
        try:
            yield orjson.dumps(record_object(columns, _cells(text, separator, max_bytes, notes)))
            notes["index_column"] += columns.unnamed > 0
        except BadLine as error:
            yield error
            if lines > 1 and error.code in ("too_long", "not_csv") and next(records, None):
                raise BadLine(
                    "not_csv", "it is unclear where records begin: the rest of the file isn't read"
                ) from None


def _records(file: BufferedReader, max_bytes: int) -> Iterator[tuple[bytes | None, int]]:
    """Yield (bytes or None if they are too many, lines) of each record."""
    parts: list[bytes] = []
    size = quotes = lines = 0
    while piece := file.readline(max_bytes + 1):
        parts.append(piece)
        size += len(piece)
        quotes += piece.count(b'"')
        lines += piece.endswith(b"\n")
        if size > max_bytes + 2:  # CR and LF
            parts.clear()
        if piece.endswith(b"\n") and quotes % 2 == 0:
            yield b"".join(parts) or None, lines
            parts.clear()
            size = quotes = lines = 0
    if size:
        yield b"".join(parts) or None, lines + 1


def _header(
    record: bytes | None, separators: Sequence[str], max_bytes: int, notes: Counter[str]
) -> tuple[Columns, str]:
    """Return the columns, and the first of `separators` that is in the header. Raises `BadLine` if it does
    not name them.
    """
    notes["crlf"] += (record or b"").endswith(b"\r\n")
    cells_by_separator: dict[str, list[str]] = {}
    why = ""
    for separator in separators:
        try:
            cells_by_separator[separator] = _cells(record, separator, max_bytes, Counter())
        except BadLine as error:
            if error.code == "not_utf8":
                raise
            why = why or str(error)
    # A quote inside a name belongs to another separator: a;"b, c" is not separated by commas.
    likely = (
        separator
        for separator, cells in cells_by_separator.items()
        if len(cells) > 1 and '"' not in "".join(cells)
    )
    separator = next(likely, separators[0])
    if separator not in cells_by_separator:
        raise BadLine("bad_header", NAMELESS + why)
    return columns_of(cells_by_separator[separator]), separator


def columns_of(header: Sequence[str]) -> Columns:
    """Return the columns that the cells of a header name. Raises `BadLine`."""
    cells = [name if name.strip() else "" for name in header]
    unnamed = next((place for place, name in enumerate(cells) if name), len(cells))
    names = known_names(cells[unnamed:])
    named = [name for name in names if name]
    if not named:
        raise BadLine("bad_header", f"{NAMELESS}none has a name")
    if len(set(named)) < len(named):
        raise BadLine("bad_header", f"{NAMELESS}two have the same name")
    return Columns(names, unnamed)


def _cells(record: bytes | None, separator: str, max_bytes: int, notes: Counter[str]) -> list[str]:
    """Return the cells of a record. None is a record that is too long."""
    if record is None or len(record.rstrip(b"\r\n")) > max_bytes:
        raise BadLine("too_long", f"longer than {max_bytes} bytes")
    notes["crlf"] += record.endswith(b"\r\n")  # line ends of records, not of the lines inside a cell
    if record.isspace():
        raise BadLine("blank", "nothing on this line")
    text = record.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
    try:
        cells = next(csv.reader([text], strict=True, delimiter=separator))
        record.decode("utf-8")
    except csv.Error as error:
        faults = FAULTS
        if "\r" not in text.replace("\r\n", "\n"):
            faults = FAULTS | {"new-line character": INSIDE}
        raise BadLine(
            "not_csv",
            next((note for cause, note in faults.items() if cause in str(error)), "its quotes don't match"),
        ) from None
    except UnicodeDecodeError as error:
        raise BadLine("not_utf8", f"byte {error.start} is not UTF-8: {NOT_UTF8}") from None
    return cells


def record_object(columns: Columns, cells: list[str]) -> dict[str, Any]:
    """Return a record as an object. Raises `BadLine` for cells without a name in the header."""
    width = columns.unnamed + len(columns.names)
    if len(cells) != width:
        raise BadLine("bad_shape", f"{len(cells)} cells, but the header names {width}")
    if columns.unnamed:
        cells = cells[columns.unnamed :]
    row = {name: cell_value(name, cell) for name, cell in zip(columns.names, cells, strict=True) if cell}
    if "" in row:
        raise BadLine("bad_shape", "a cell holds something, and its column has no name")
    return row
