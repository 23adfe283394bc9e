"""The members of archives of any type: detection of data, a reader for members that can be opened only once,
and sentences on members that are not read.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from io import BufferedReader
from itertools import chain
from pathlib import PurePosixPath
from typing import NamedTuple

from pipeline.core.jsonl import BadLine
from pipeline.core.special_files import is_users_data
from pipeline.core.text import listed, plural
from pipeline.intake.files.files import STREAMED, Content, Pieces, need_no_page

BLOCK = 1 << 16  # bytes
APPLE_FORKS = "__MACOSX"  # folder in which macOS stores metadata of the files next to it
READ_INSIDE = f"inside are read {listed([f'*{suffix}' for suffix in STREAMED])}, plain or with .gz or .zst"
NOT_READ = "members_not_read"  # key in a file's notes
NAMED = "member_not_read "  # beginning of a note, followed by a member's name
MOST_NAMED = 3  # members of one archive
ARCHIVES_NAMED = 5  # archives on the terminal


def is_data(name: str) -> bool:
    """Return False for a member that is hidden, is in a hidden folder or was added by macOS."""
    parts = PurePosixPath(name).parts
    return all(part == ".." or (is_users_data(part) and part != APPLE_FORKS) for part in parts)


class Unread(NamedTuple):
    """The members of an archive that are not read."""

    number: int
    names: list[str]  # the first ones

    def shown(self) -> str:
        """Return the names of the first ones and the number of the others."""
        others = self.number - len(self.names)
        return ", ".join(self.names) + (f" and {others:,} more" if others else "")


class Member:
    """A member that can be opened again, although the archive provides its bytes only once. The bytes read
    are kept until it is opened for the last time. It may unpack to `limit` bytes.
    """

    def __init__(self, content: Content, limit: int) -> None:
        self.content = Content(content.name, content.kind, self._again)
        self.last = Content(content.name, content.kind, self._for_the_last_time)
        self.bytes_read = 0
        self._limit = limit
        self._blocks = _blocks_of(content)
        self._kept: list[bytes] = []
        self._keeps = True
        self._error: BadLine | OSError | None = None

    def _again(self) -> BufferedReader:
        return BufferedReader(Pieces(self._from_the_start(), self._limit), BLOCK)

    def _for_the_last_time(self) -> BufferedReader:
        kept = self._kept
        self._kept = []
        self._keeps = False
        return BufferedReader(Pieces(chain(kept, iter(self._next, b"")), self._limit), BLOCK)

    def _from_the_start(self) -> Iterator[bytes]:
        for number in range(len(self._kept)):
            yield self._kept[number]
        yield from iter(self._next, b"")

    def _next(self) -> bytes:
        """Return the next block, b"" at the end. If the member breaks, the error is raised each time."""
        if self._error is not None:
            raise self._error
        try:
            block = next(self._blocks, b"")
        except (BadLine, OSError) as error:
            self._error = error
            raise
        self.bytes_read += len(block)
        if self._keeps:
            self._kept.append(block)
        return block


def _blocks_of(content: Content) -> Iterator[bytes]:
    with content.opened() as file:
        need_no_page(file, content.kind)
        yield from iter(partial(file.read1, BLOCK), b"")


def note_member(notes: Counter[str], name: str) -> None:
    """Count a member that is not read, and note the names of the first ones."""
    notes[NOT_READ] += 1
    if notes[NOT_READ] <= MOST_NAMED:
        notes[NAMED + name] += 1


def unread_members(notes: Mapping[str, int]) -> Unread:
    """Return the members that are not read, from an archive's notes."""
    names = [note.removeprefix(NAMED) for note in notes if note.startswith(NAMED)]
    return Unread(notes.get(NOT_READ, 0), names)


def without_names(notes: Mapping[str, int]) -> dict[str, int]:
    """Return an archive's notes without those that name members."""
    return {note: count for note, count in notes.items() if not note.startswith(NAMED)}


def members_sentences(archives: Mapping[str, Unread]) -> list[str]:
    """Return sentences on the members of each archive that are not read."""
    unread = {name: members for name, members in archives.items() if members.number}
    if not unread:
        return []
    named = list(unread)[:ARCHIVES_NAMED]
    sentences = [
        f"{name}: {plural(unread[name].number, 'file')} inside not read: {unread[name].shown()}"
        for name in named
    ]
    others = len(unread) - len(named)
    if others:
        files = sum(members.number for members in unread.values())
        files -= sum(unread[name].number for name in named)
        sentences.append(f"{plural(files, 'file')} inside {plural(others, 'more archive')} not read")
    remedy = "beside a program's export only its own files; unpack the others into data/raw to have them read"
    return [*sentences, f"{READ_INSIDE}, and {remedy}"]
