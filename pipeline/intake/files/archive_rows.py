"""The rows of the members of an archive, one after the other."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from itertools import chain, groupby
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports import side_files
from pipeline.intake.exports.export import Export, Record, Records
from pipeline.intake.files.archives import BrokenArchive
from pipeline.intake.files.contents import RawRow, content_rows, recognized, records_of, values_of
from pipeline.intake.files.exported import recognized_rows
from pipeline.intake.files.files import Content, too_large
from pipeline.intake.files.members import READ_INSIDE, Member, note_member, unread_members


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


def archive_rows(
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
        layout, export = recognized(member.content, max_bytes, notes)
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
                _, export = recognized(Member(content, limit).content, max_bytes, Counter())
                if export and export not in side_files.EXPORTS:
                    return True
    return False


def _begins_broken(content: Content, layout: str) -> bool:
    """Return True for a JSON file whose first record can't be read, so that its content is unknown."""
    if content.kind != ".json":
        return False
    try:
        first = next(records_of(content, layout), None)
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
        yield from content_rows(first.content, first.layout, max_bytes, notes)
    else:
        records = Records(_joined_records(group, f"export_{first.export.name}", notes), beside)
        yield from recognized_rows(first.export, records, max_bytes, notes)


def _joined_records(group: Iterator[_Member], note: str, notes: Counter[str]) -> Iterator[Record]:
    """Yield the records of members that are read as one file, and count these under the name `note`."""
    before = 0
    try:
        for member in group:
            notes[note] += 1
            last = 0
            try:
                for record in records_of(member.content, member.layout):
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
                return values_of(Member(content, limit).content)
    return []


def _placed(row: bytes | BadLine, place: str) -> bytes | BadLine:
    """Return a row of a member, with the member's name in front of its error, if it has one."""
    return BadLine(row.code, f"{place}: {row}") if isinstance(row, BadLine) else row
