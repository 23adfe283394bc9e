"""The rows inside a raw file as JSON bytes: JSONL, one JSON value, CSV, TSV, Parquet, Arrow, Excel; gzip and
Zstandard around them, tars and zip archives of them, and programs' exports.

The name determines the container, unless a file that is named as plain text holds rows (`misnamed`). The
content determines if JSON is one value a line, a single value, or several on many lines each. Each row of a
file is returned once: as bytes for `pipeline.core.jsonl.parse_line`, or as a `BadLine` with the reason why it
can't be read. Only the current element of a JSON array is in memory, whatever its length.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pipeline.core.jsonl import BadLine, parse_line, parse_value
from pipeline.core.text import safe
from pipeline.intake.exports import cursor
from pipeline.intake.exports.cursor_database import composer_rows
from pipeline.intake.exports.export import Records
from pipeline.intake.files.archive_rows import archive_rows
from pipeline.intake.files.archives import tar_members
from pipeline.intake.files.contents import (
    RawRow,
    content_rows,
    numbered,
    of_one_record,
    recognized,
    records_in,
    records_of,
    values_of,
)
from pipeline.intake.files.documents import Style, document_rows
from pipeline.intake.files.encodings import NOT_UTF8
from pipeline.intake.files.exported import exported_rows, recognized_rows
from pipeline.intake.files.files import (
    ARCHIVE,
    DATABASE,
    PACKED_SUFFIXES,
    ZIP,
    content_of,
    growth_limit,
    opened,
    suffixes,
    unpacked,
)
from pipeline.intake.files.saved_folders import is_description, missing_files
from pipeline.intake.files.zips import zip_members


class RawLine(NamedTuple):
    """A row of a raw file: a line, an element or a record of it, or one of the rows that a record gives."""

    number: int  # number of the record, from 1
    offset: int | None  # bytes from the start of the (decompressed, UTF-8) file; None for tables
    data: bytes | BadLine
    row: int = 0  # number among the rows of the record, from 1; 0 if the record gives only this one

    def source(self, file: str) -> str:
        """Return FILE:LINE, or FILE:LINE~NUMBER if the record gives several rows."""
        return f"{file}:{self.number}~{self.row}" if self.row else f"{file}:{self.number}"

    @property
    def raw(self) -> bytes:
        """Return the bytes of the row, if there are any."""
        return self.data if isinstance(self.data, bytes) else b""


def parsed(row: bytes | BadLine) -> dict[str, Any]:
    """Return the JSON object of a row of `raw_lines`.

    A list of turns is put into an object. Raises `BadLine`.
    """
    if isinstance(row, BadLine):
        raise row
    try:
        return parse_line(row)
    except BadLine as error:
        if error.code == "not_object":
            turns = parse_value(row)
            if _is_chat(turns):
                return {"messages": turns}
            raise BadLine(error.code, f"{error}, and no list of turns") from None
        if error.code != "not_utf8":
            raise
        raise BadLine(error.code, f"{error}: {NOT_UTF8}") from None


def _is_chat(value: Any) -> bool:
    """Return True for a list of turns, which some files have without an object around it."""
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(
        isinstance(turn, dict) and not turn.keys().isdisjoint(("role", "from")) for turn in value
    )


def raw_lines(
    path: Path,
    name: str,
    *,
    max_line_bytes: int,
    notes: Counter[str],
    style: Style | None = None,
) -> Iterator[RawLine]:
    """Yield every row of the file: number from 1, byte offset, its JSON or the reason why it can't be read.

    A row is a line (a blank one too), an array's element or a table's record. If a file can't be read
    further, the rest of it is one more row. An export's record may give several rows, and so does a long
    document. Those follow each other, with the record's number and numbers of their own. The offset is that
    in the unpacked file, None in a table. `name` determines the container. Memory stays within a few times
    `max_line_bytes`, and one page of each column of a Parquet file. `notes` counts `bom` and `crlf` (lines
    with these ends). With a `style` the file is a document, whatever its name. Raises only `DataError`, if
    the file can't be opened.
    """
    number = 0
    try:
        rows = _document(path, name, notes, style) if style else _rows(path, name, max_line_bytes, notes)
        for line in _within_records(rows):
            number = line.number
            yield line
    except BadLine as broken:
        yield RawLine(number + 1, None, broken)
    except OSError as error:
        yield RawLine(
            number + 1, None, BadLine("broken_container", f"the file can't be read here ({error.strerror})")
        )


def _within_records(rows: Iterable[RawRow]) -> Iterator[RawLine]:
    """Yield rows, numbered within each record."""
    held: RawLine | None = None
    try:
        for number, offset, data in rows:
            row = 0
            if held is not None:
                if held.number == number:
                    held = held._replace(row=held.row or 1)
                    row = held.row + 1
                yield held
            held = RawLine(number, offset, data, row)
    except (BadLine, OSError):  # Rows that were read before the file breaks are rows all the same.
        if held is not None:
            yield held
        raise
    if held is not None:
        yield held


def _document(path: Path, name: str, notes: Counter[str], style: Style) -> Iterator[RawRow]:
    packing = PACKED_SUFFIXES.get(PurePosixPath(name.lower()).suffix, "")
    heading = f"{name}\n\n" if style == "named" else ""
    with opened(path) as packed, unpacked(packed, packing) as file:
        yield from of_one_record(document_rows(file, notes, heading))


def _rows(path: Path, name: str, max_bytes: int, notes: Counter[str]) -> Iterator[RawRow]:
    if is_description(path):
        notes["description"] += 1
        yield from numbered(map(_missing, missing_files(path)))
        return
    kind, packing = suffixes(name)
    if kind in (ZIP, ARCHIVE):
        members = partial(zip_members, path) if kind == ZIP else partial(tar_members, path, packing)
        with opened(path) as file:
            limit = growth_limit(file)
        yield from archive_rows(members, limit, max_bytes, notes)
    elif kind == DATABASE:
        notes[f"export_{cursor.EXPORT.name}"] += 1
        records = Records(records_in(numbered(composer_rows(path))))
        yield from exported_rows(cursor.EXPORT, records, max_bytes, notes)
    else:
        content = content_of(path, name)
        layout, export = recognized(content, max_bytes, notes)
        if export is None:
            yield from content_rows(content, layout, max_bytes, notes)
        else:
            notes[f"export_{export.name}"] += 1
            records = Records(records_of(content, layout), partial(_values_near, path))
            yield from recognized_rows(export, records, max_bytes, notes)


def _values_near(path: Path, name: str) -> list[Any]:
    """Return the values of the JSON file of this name next to a file or its folder; [] without one."""
    near = next((place for place in (path.parent / name, path.parent.parent / name) if place.is_file()), None)
    return [] if near is None else values_of(content_of(near, name))


def _missing(file: str) -> BadLine:
    return BadLine("broken_container", f"it lists {safe(file)}, which is not there: copy the folder again")
