"""The rows inside a raw file as JSON bytes: JSONL, one JSON value, CSV, TSV, Parquet, Arrow, Excel; gzip and
Zstandard around them, tars and zip archives of them, and programs' exports.

The name determines the container, unless a file that is named as plain text holds rows (`misnamed`). The
content determines if JSON is one value a line, a single value, or several on many lines each. Each row of a
file is returned once: as bytes for `pipeline.core.jsonl.parse_line`, or as a `BadLine` with the reason why it
can't be read. Only the current element of a JSON array is in memory, whatever its length.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from io import BufferedReader
from itertools import chain, groupby, islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, TypeVar

import orjson

from pipeline.core.jsonl import BYTE_ORDER_MARK, BadLine, parse_line, parse_value, read_raw_lines
from pipeline.core.text import safe
from pipeline.stages.curate.exports import cursor, mbox, side_files
from pipeline.stages.curate.exports.cursor_database import composer_rows
from pipeline.stages.curate.exports.export import (
    HEAD_RECORDS,
    MAX_RECORD_BYTES,
    Export,
    Head,
    Record,
    Records,
)
from pipeline.stages.curate.exports.pieces import cut_rows
from pipeline.stages.curate.exports.registry import may_be_large
from pipeline.stages.curate.reading.archives import BrokenArchive, tar_members
from pipeline.stages.curate.reading.columnar import arrow_rows, parquet_rows
from pipeline.stages.curate.reading.columns import table_rows
from pipeline.stages.curate.reading.documents import DOCUMENTS, Style, document_rows
from pipeline.stages.curate.reading.encodings import HEAD, NOT_UTF8, is_foreign
from pipeline.stages.curate.reading.files import (
    ARCHIVE,
    ARROW,
    DATABASE,
    JSON_SPACE,
    MAILBOX,
    PACKED_SUFFIXES,
    PACKED_TABLES,
    PAGE_HEAD,
    SNIFFED,
    TEXT_TABLES,
    ZIP,
    Content,
    content_of,
    growth_limit,
    is_json,
    is_page,
    kind_in,
    layout_of,
    opened,
    suffixes,
    too_large,
    unpacked,
)
from pipeline.stages.curate.reading.mailboxes import mails
from pipeline.stages.curate.reading.members import READ_INSIDE, Member, note_member, unread_members
from pipeline.stages.curate.reading.misnamed import NOTE, REFUSED, refuse
from pipeline.stages.curate.reading.own_rows import Recognizer, export_in
from pipeline.stages.curate.reading.saved_folders import is_description, missing_files
from pipeline.stages.curate.reading.tables import Row, csv_rows
from pipeline.stages.curate.reading.workbooks import workbook_rows
from pipeline.stages.curate.reading.zips import zip_members

T = TypeVar("T")
RawRow = tuple[int, int | None, bytes | BadLine]
BLOCK = 1 << 16  # bytes
# The rest of a string from inside it to its end, or to the end of the block.
STRING_REST = re.compile(rb'[^"\\]*+(?>(?:\\.[^"\\]*+)*)(")?', re.DOTALL)
TOKEN = re.compile(rb'"' + STRING_REST.pattern + rb"|[\[\]{},]", re.DOTALL)
QUOTE = ord('"')
COMMA = ord(",")
OPENING = frozenset(b"[{")
# Errors in a row that are allowed in the parts of an export's record that no row keeps.
ROWS_ONLY = ("control_character", "number_out_of_range", "too_deep")


class Part(NamedTuple):
    """Bytes from `start` to `stop` (0: the end) of a file of lines, after `number` earlier lines."""

    start: int
    stop: int
    number: int


ALL = Part(0, 0, 0)


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
    part: Part | None = None,
    style: Style | None = None,
) -> Iterator[RawLine]:
    """Yield every row of the file, or of a part of one that `is_cut_anywhere`: number from 1, byte offset,
    its JSON or the reason why it can't be read.

    A row is a line (a blank one too), an array's element or a table's record. If a file can't be read
    further, the rest of it is one more row. An export's record may give several rows, and so does a long
    document. Those follow each other, with the record's number and numbers of their own. The offset is that
    in the unpacked file, None in a table. `name` determines the container. Memory stays within a few times
    `max_line_bytes`, and one page of each column of a Parquet file. `notes` counts `bom` and `crlf` (lines
    with these ends). With a `style` the file is a document, whatever its name. Raises only `DataError`, if
    the file can't be opened.
    """
    part = part or ALL
    number = part.number
    try:
        if style:
            rows = _document(path, name, notes, style)
        else:
            rows = _rows(path, name, max_line_bytes, notes, part)
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
        yield from _of_one_record(document_rows(file, notes, heading))


def _of_one_record(rows: Iterable[Row]) -> Iterator[RawRow]:
    """Yield the rows of a document, which is one record."""
    for row in rows:
        yield 1, None, row


def _numbered(rows: Iterable[Row]) -> Iterator[RawRow]:
    """Yield rows with their numbers. Their offsets are not known."""
    for number, row in enumerate(rows, start=1):
        yield number, None, row


def _rows(path: Path, name: str, max_bytes: int, notes: Counter[str], part: Part) -> Iterator[RawRow]:
    if is_description(path):
        notes["description"] += 1
        yield from _numbered(map(_missing, missing_files(path)))
        return
    kind, packing = suffixes(name)
    if kind in (ZIP, ARCHIVE):
        members = partial(zip_members, path) if kind == ZIP else partial(tar_members, path, packing)
        with opened(path) as file:
            limit = growth_limit(file)
        yield from _archive_rows(members, limit, max_bytes, notes)
    elif kind == DATABASE:
        notes[f"export_{cursor.EXPORT.name}"] += 1
        records = Records(_records_in(_numbered(composer_rows(path))))
        yield from _exported(cursor.EXPORT, records, max_bytes, notes)
    elif part.start:  # lines of a file that is not packed
        with opened(path) as file:
            file.seek(part.start)
            yield from _lines(file, max_bytes, notes, part)
    else:
        content = content_of(path, name)
        layout, export = _recognized(content, max_bytes, notes)
        if export is None:
            yield from _content_rows(content, layout, max_bytes, notes, part)
        else:
            notes[f"export_{export.name}"] += 1
            records = Records(_records_of(content, layout), partial(_values_near, path))
            yield from _recognized_rows(export, records, max_bytes, notes)


def _content_rows(
    content: Content, layout: str, max_bytes: int, notes: Counter[str], part: Part = ALL
) -> Iterator[RawRow]:
    """Yield the rows of a file that is not an export."""
    if layout in REFUSED:
        raise refuse(layout)
    with content.opened() as file:
        if layout in DOCUMENTS:
            yield from _of_one_record(document_rows(file, notes))
        elif layout in (*TEXT_TABLES, *PACKED_TABLES):
            yield from _numbered(_records(layout, file, max_bytes, notes))
        else:
            yield from _json_rows(file, layout, max_bytes, notes, part)


def _json_rows(
    file: BufferedReader, layout: str, max_bytes: int, notes: Counter[str], part: Part = ALL
) -> Iterator[RawRow]:
    """Yield the rows of a JSON file that is open at its beginning, or at that of a part of its lines."""
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
            yield from _numbered(by_columns)
    else:
        yield from _lines(file, max_bytes, notes, part)


def _recognized(content: Content, max_bytes: int, notes: Counter[str]) -> tuple[str, Export | None]:
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
    return Head(layout, tuple(_readable(islice(_records_of(content, layout, max_bytes), HEAD_RECORDS))))


def _readable(records: Iterable[Record]) -> list[Any]:
    """Return the values of the records that can be read."""
    values = []
    with suppress(BadLine, OSError):
        for record in records:
            if not isinstance(record.value, BadLine):
                values.append(record.value)
    return values


def _records_of(content: Content, layout: str, max_bytes: int = MAX_RECORD_BYTES) -> Iterator[Record]:
    """Yield the records of a file."""
    with content.opened() as file:
        if layout == mbox.MAILBOX:
            yield from _letters(file)
            return
        yield from _records_in(_json_rows(file, layout, max_bytes, Counter()))


def _letters(file: BufferedReader) -> Iterator[Record]:
    """Yield the mails of a mailbox as records."""
    yield from (Record(*mail) for mail in mails(file, MAX_RECORD_BYTES))


def _records_in(rows: Iterable[RawRow]) -> Iterator[Record]:
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


def _recognized_rows(
    export: Export, records: Records, max_bytes: int, notes: Counter[str]
) -> Iterator[RawRow]:
    """Yield the rows of a file that was detected as an export by its first records. The user's own rows and
    another program's conversations between its records are read as such.
    """
    beside = cache(records.beside)
    counted = {export}
    for reader, group in groupby(records.each, Recognizer(export)):
        if reader is None:
            yield from _own_rows(group, max_bytes)
            continue
        if reader not in counted:
            notes[f"export_{reader.name}"] += 1
            counted.add(reader)
        yield from _exported(reader, Records(group, beside), max_bytes, notes)


def _own_rows(records: Iterable[Record], max_bytes: int) -> Iterator[RawRow]:
    """Yield records that are the user's own rows as JSON bytes."""
    for number, offset, value in records:
        data = _row_bytes(value)
        is_long = isinstance(data, bytes) and len(data) > max_bytes
        yield number, offset, _too_long(max_bytes) if is_long else data


def _too_long(max_bytes: int) -> BadLine:
    return BadLine("too_long", f"longer than {max_bytes} bytes")


def _exported(export: Export, records: Records, max_bytes: int, notes: Counter[str]) -> Iterator[RawRow]:
    """Yield the rows of a program's export as JSON bytes. Conversations longer than a row may be are cut."""
    for number, offset, row in export.read(records, notes):
        data = _row_bytes(row)
        if isinstance(data, bytes) and not isinstance(row, BadLine) and len(data) > max_bytes:
            for piece in cut_rows(row, max_bytes):
                notes["conversations_cut"] += isinstance(piece, dict)
                yield number, offset, _row_bytes(piece)
        else:
            yield number, offset, data


def _row_bytes(row: dict[str, Any] | BadLine) -> bytes | BadLine:
    if isinstance(row, BadLine):
        return row
    try:
        return orjson.dumps(row)
    except orjson.JSONEncodeError:  # orjson reads deeper nesting than it writes.
        return BadLine("too_deep", "the conversation is nested too deep")


def _values_near(path: Path, name: str) -> list[Any]:
    """Return the values of the JSON file of this name next to a file or its folder; [] without one."""
    near = next((place for place in (path.parent / name, path.parent.parent / name) if place.is_file()), None)
    return [] if near is None else _values(content_of(near, name))


def _values(content: Content) -> list[Any]:
    """Return the values of a small JSON file that supplements an export, as far as it can be read."""
    with suppress(OSError):
        layout = layout_of(content, MAX_RECORD_BYTES, Counter())
        return _readable(_records_of(content, layout))
    return []


def _missing(file: str) -> BadLine:
    return BadLine("broken_container", f"it lists {safe(file)}, which is not there: copy the folder again")


class _Member(NamedTuple):
    """A member of an archive, which can be opened once, with its layout and export."""

    content: Content
    layout: str
    export: Export | None

    @property
    def folder(self) -> str:
        """Return the folder whose files its export joins, "" if it joins none."""
        joins = self.export is not None and self.export.joins_folder
        return str(PurePosixPath(self.content.name).parent) if joins else ""


def _archive_rows(
    members: Callable[[], Iterator[Content]], limit: int, max_bytes: int, notes: Counter[str]
) -> Iterator[RawRow]:
    """Yield the rows of an archive's members, one after the other, numbered consecutively.

    `members` iterates over the archive each time that it is called. An error in a member costs its own rows.
    An error in the archive costs all rows that follow. Together the members may unpack to `limit` bytes.
    """
    beside = cache(partial(_values_inside, members, limit))
    before = 0  # records of earlier members
    for group in _groups(_members_read(members, limit, max_bytes, notes)):
        last = 0
        first = next(group)
        try:
            for number, _, row in _group_rows(chain([first], group), first, beside, max_bytes, notes):
                last = max(last, number)
                yield before + number, None, _placed(row, first.folder or first.content.name)
        except BrokenArchive:
            raise
        except BadLine as broken:
            last += 1
            yield before + last, None, _placed(broken, first.folder or first.content.name)
        before += last


def _members_read(
    members: Callable[[], Iterator[Content]], limit: int, max_bytes: int, notes: Counter[str]
) -> Iterator[_Member]:
    """Yield the members that are read. Each is read before the next is requested.

    Next to an export, only its own files are read, and damaged files, which may be its own. `notes` lists the
    others. Raises `BadLine` if no member is read.
    """
    is_export = _holds_export(members, limit, max_bytes)
    read = unpacked_bytes = 0
    for content in members():
        if not content.kind:
            note_member(notes, content.name)
            continue
        if unpacked_bytes > limit:
            raise too_large(limit)
        member = Member(content, limit)
        layout, export = _recognized(member.content, max_bytes, notes)
        if is_export and export is None and not _begins_broken(member.content, layout):
            note_member(notes, content.name)
            continue
        read += 1
        yield _Member(member.last, layout, export)
        unpacked_bytes += member.bytes_read
    if not read:
        names = unread_members(notes).shown() or "it is empty"
        raise BadLine("unknown_container", f"no file in this archive is read ({names}): {READ_INSIDE}")


def _holds_export(members: Callable[[], Iterator[Content]], limit: int, max_bytes: int) -> bool:
    """Return True if a member is a program's export, and not only a file next to one."""
    # The error of a broken archive occurs again, and is reported, when its rows are read.
    with suppress(BadLine):
        for content in members():
            if content.kind:
                _, export = _recognized(Member(content, limit).content, max_bytes, Counter())
                if export and export not in side_files.EXPORTS:
                    return True
    return False


def _begins_broken(content: Content, layout: str) -> bool:
    """Return True for a JSON file whose first record can't be read, so that its content is unknown."""
    if content.kind != ".json":
        return False
    try:
        first = next(_records_of(content, layout), None)
    except BadLine:
        return True
    return first is not None and isinstance(first.value, BadLine)


def _groups(members: Iterator[_Member]) -> Iterator[Iterator[_Member]]:
    """Yield each member by itself, or members together if their export joins the files of a folder."""
    for folder, group in groupby(members, lambda member: member.folder):
        if folder:
            yield group
        else:
            yield from (iter([member]) for member in group)


def _group_rows(
    group: Iterator[_Member],
    first: _Member,
    beside: Callable[[str], list[Any]],
    max_bytes: int,
    notes: Counter[str],
) -> Iterator[RawRow]:
    """Yield the rows of members that are read as one file."""
    if first.export is None:
        yield from _content_rows(first.content, first.layout, max_bytes, notes)
    else:
        records = Records(_joined_records(group, f"export_{first.export.name}", notes), beside)
        yield from _recognized_rows(first.export, records, max_bytes, notes)


def _joined_records(group: Iterator[_Member], note: str, notes: Counter[str]) -> Iterator[Record]:
    """Yield the records of members that are read as one file, and count these under the name `note`."""
    before = 0
    try:
        for member in group:
            notes[note] += 1
            last = 0
            try:
                for record in _records_of(member.content, member.layout):
                    last = record.number
                    yield Record(before + last, None, record.value)
            except BrokenArchive:
                raise
            except BadLine as broken:
                last += 1
                yield Record(before + last, None, broken)
            before += last
    except BadLine as broken:  # The archive breaks. Records that were read before are still read as rows.
        yield Record(before + 1, None, broken)


def _values_inside(members: Callable[[], Iterator[Content]], limit: int, name: str) -> list[Any]:
    """Return the values in the archive's JSON file of this name, in any folder; [] if there is none."""
    with suppress(BadLine):
        for content in members():
            if content.kind and PurePosixPath(content.name).name == name:
                return _values(Member(content, limit).content)
    return []


def _placed(row: bytes | BadLine, place: str) -> bytes | BadLine:
    """Return a row of a member, with the member's name in front of its error, if it has one."""
    return BadLine(row.code, f"{place}: {row}") if isinstance(row, BadLine) else row


def _records(kind: str, file: BufferedReader, max_bytes: int, notes: Counter[str]) -> Iterator[Row]:
    """Yield the records of a table with the suffix `kind`."""
    if kind == ".parquet":
        return parquet_rows(file, max_bytes)
    if kind in ARROW:
        return arrow_rows(file, max_bytes)
    if kind == ".xlsx":
        return workbook_rows(file, max_bytes, notes)
    return csv_rows(file, max_bytes, notes, "\t" if kind == ".tsv" else ",")


def is_cut_anywhere(path: Path, name: str, max_bytes: int) -> bool:
    """Return True if the file can be read in parts that begin at its lines: plain JSON, a row a line."""
    if suffixes(name) != (".json", "") or is_description(path):
        return False
    with opened(path) as file:
        head = file.peek(PAGE_HEAD)
        if is_foreign(head[:HEAD]) or is_page(head):
            return False
    return _recognized(content_of(path, name), max_bytes, Counter()) == ("lines", None)


def _lines(file: BinaryIO, max_bytes: int, notes: Counter[str], part: Part) -> Iterator[RawRow]:
    for number, offset, line in read_raw_lines(file, max_bytes, part.number, part.start):
        if part.stop and offset >= part.stop:
            return
        if line is None:
            yield number, offset, _too_long(max_bytes)
            continue
        notes["crlf"] += line.endswith(b"\r")
        row = line.removesuffix(b"\r")
        yield number, offset, row if row.strip() else BadLine("blank", "nothing on this line")


def array_rows(file: BufferedReader, max_bytes: int) -> Iterator[tuple[int, int, bytes | BadLine]]:
    """Yield (number from 1, byte offset, bytes) of each element of a file that begins with `[` (after spaces
    or a byte order mark).

    If the array is broken, the rest of the file is one `BadLine`, because the elements' beginnings are
    unknown.
    """
    number = start = size = 0
    text = bytearray()
    mark = b""
    pieces = _pieces(file)
    for offset, piece, mark in pieces:
        if not size:
            start = offset + len(piece) - len(piece.lstrip(JSON_SPACE))
            piece = piece.lstrip(JSON_SPACE)
        size += len(piece)
        if size <= max_bytes + BLOCK:  # Spaces may follow it.
            text += piece
        if not mark:
            continue
        if mark == b"]" and not size and not number:
            break  # an empty array
        number += 1
        element = bytes(text).rstrip(JSON_SPACE)
        if size > max_bytes + BLOCK or len(element) > max_bytes:
            yield number, start, _too_long(max_bytes)
        elif mark == b"}" or not _is_grammatical(element):
            yield number, start, BadLine("not_json", "the array is broken here: what follows isn't read")
            return
        else:
            yield number, start, element
        text.clear()
        size = 0
        if mark == b"]":
            break
    if mark != b"]":
        yield number + 1, start, BadLine("not_json", "the array is never closed")
        return
    for offset, piece, _ in pieces:
        rest = piece.lstrip(JSON_SPACE)
        if rest:
            yield (
                number + 1,
                offset + len(piece) - len(rest),
                BadLine("not_json", "something follows the array's end"),
            )
            return


def stream_rows(file: BufferedReader, max_bytes: int) -> Iterator[RawRow]:
    """Yield (number of its first line, byte offset, bytes) of each of several JSON values that follow each
    other, each on several lines.

    A value that is never closed ends where a line begins another one.
    """
    offset = depth = size = 0
    begin = (0, 0)
    text = bytearray()
    for number, line in enumerate(iter(partial(file.readline, max_bytes + BLOCK), b""), start=1):
        if number == 1 and line.startswith(BYTE_ORDER_MARK):
            line = line.removeprefix(BYTE_ORDER_MARK)
            offset = len(BYTE_ORDER_MARK)
        if depth > 0 and line.startswith(b"{"):
            yield *begin, BadLine("not_json", "the value that begins here is never closed")
            depth = size = 0
            text.clear()
        if not size and line.strip():
            begin = (number, offset)
        if size or line.strip():
            size += len(line)
            text += line if size <= max_bytes + BLOCK else b""
            for token in TOKEN.finditer(line):
                mark = token[0][:1]
                depth += (mark in (b"[", b"{")) - (mark in (b"]", b"}"))
            if depth <= 0:
                yield *begin, _too_long(max_bytes) if size > max_bytes else bytes(text).strip(JSON_SPACE)
                depth = size = 0
                text.clear()
        offset += len(line)
    if size:
        yield *begin, BadLine("not_json", "the value that begins here is never closed")


def _pieces(file: BufferedReader) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (offset, bytes, mark) of the array's inside, cut at its own commas and its end (the marks), and
    at the ends of blocks (no mark).

    After the end everything is yielded uncut. Strings are recognized, brackets are counted. The elements are
    not checked to be JSON here.
    """
    depth = 0
    in_string = False
    closed = False
    base = 0
    held = b""
    while block := file.read1(BLOCK):
        block = held + block
        cut = end = 0
        if in_string and (rest := STRING_REST.match(block)):
            end = rest.end()
            in_string = rest[1] is None
        for token in () if closed else TOKEN.finditer(block, end):
            at = token.start()
            first = block[at]
            if first == QUOTE:
                end = token.end()
                in_string = token[1] is None
            elif first in OPENING:
                depth += 1
                cut = at + 1 if depth == 1 else cut
            else:
                depth -= first != COMMA
                closed = not depth
                if closed or (depth == 1 and first == COMMA):
                    yield base + cut, block[cut:at], block[at : at + 1]
                    cut = at + 1
                if closed:
                    break
        held = block[end:] if in_string else b""  # a backslash whose second half is in the next block
        yield base + cut, block[cut : len(block) - len(held)], b""
        base += len(block) - len(held)


def _is_grammatical(element: bytes) -> bool:
    """Return True if the text follows JSON's grammar, so that the array's next comma separates elements."""
    if is_json(element):
        return True
    try:
        json.loads(element.decode("utf-8", "replace"))
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):  # thousands of digits, or of brackets
        return True
    return True
