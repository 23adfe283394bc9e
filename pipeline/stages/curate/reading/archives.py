"""The files inside a tar, one after the other as the archive is read: nothing is written to disk, and no
member's name is used as a path.

Python's tarfile takes an archive that is cut between two members, or damaged there, for a complete one. Here
both are named.
"""

import tarfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import PurePosixPath
from typing import IO, Any, cast

from pipeline.core.jsonl import BadLine
from pipeline.core.special_files import is_users_data
from pipeline.core.text import plural, safe
from pipeline.stages.curate.reading.files import Pieces

READ = 1 << 16  # bytes


class BrokenArchive(BadLine):
    """The archive itself breaks, so that no later member can be read."""


class _Member(tarfile.TarInfo):
    """A member whose damaged header ends the archive in an error."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Member":
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except (tarfile.EmptyHeaderError, tarfile.TruncatedHeaderError):  # type: ignore[attr-defined]
            raise BrokenArchive("broken_container", "the tar has no end mark: it may be cut off") from None
        except tarfile.HeaderError as error:  # type: ignore[attr-defined]
            raise BrokenArchive("broken_container", f"the tar breaks here ({error})") from None


class _Source:
    """The archive's bytes; where these break, the archive does."""

    def __init__(self, file: BufferedReader) -> None:
        self.file = file

    def read(self, size: int) -> bytes:
        try:
            return self.file.read(size)
        except BadLine as error:
            raise BrokenArchive(error.code, str(error)) from None


def tar_members(file: BufferedReader) -> Iterator[tuple[str, BufferedReader | None]]:
    """Yield the name and the content of each file in a tar; None if it is a link or a device. Each content is
    read before the next is asked for. Raises `BrokenArchive`.

    Folders, hidden files and what is below hidden folders are left out, as in data/raw.
    """
    try:
        if not file.peek(1):
            return
        with tarfile.open(
            fileobj=cast(Any, _Source(file)), mode="r|", tarinfo=_Member, bufsize=READ
        ) as archive:
            while member := archive.next():
                archive.members.clear()  # type: ignore[attr-defined]
                parts = PurePosixPath(member.name).parts
                if member.isdir() or not all(part == ".." or is_users_data(part) for part in parts):
                    continue
                content = archive.extractfile(member) if member.isreg() else None
                pieces = Pieces(_blocks(content), member.size) if content else None
                yield safe(member.name), BufferedReader(pieces, READ) if pieces else None
            _need_nothing_more(archive)
    except tarfile.TarError as error:
        raise BrokenArchive("broken_container", f"the tar breaks here ({error})") from None


def _blocks(content: IO[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a member. Raises `BrokenArchive` if there are fewer than its header says."""
    try:
        while block := content.read(READ):
            yield block
    except tarfile.TarError as error:
        raise BrokenArchive("broken_container", f"the tar breaks here ({error})") from None


def _need_nothing_more(archive: tarfile.TarFile) -> None:
    """Raise `BrokenArchive` if something follows the archive's end mark, such as another archive."""
    while piece := archive.fileobj.read(READ):  # type: ignore[union-attr]
        if piece.strip(b"\0"):
            raise BrokenArchive(
                "broken_container",
                "something follows the tar's end mark, and it isn't read: unpack archives that were joined",
            )


def members_sentences(count: int) -> list[str]:
    """Return a sentence on the members of archives that are not read, if there are any."""
    if not count:
        return []
    return [
        f"{plural(count, 'file')} inside archives not read: only JSON, CSV, TSV, mbox and plain text are, "
        "plain or with .gz or .zst, and in a zip with an export only that; unpack the others into data/raw"
    ]
