"""The files inside a tar, one after the other as the archive is read. Nothing is written to disk, and no
member's name is used as a path.

Python's tarfile treats an archive that is cut between two members, or damaged there, as complete. Here both
are reported.
"""

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from pipeline.core.jsonl import BadLine
from pipeline.core.text import safe
from pipeline.intake.files.files import (
    ARCHIVE,
    STREAMED,
    Content,
    Pieces,
    growth_limit,
    need_no_page,
    opened,
    suffixes,
    unpacked,
)
from pipeline.intake.files.members import is_data

READ = 1 << 16  # bytes


class BrokenArchive(BadLine):
    """Error for a broken archive, after which no later member can be read."""


def _broken(error: tarfile.TarError) -> BrokenArchive:
    return BrokenArchive("broken_container", f"the tar breaks here ({error})")


class _Member(tarfile.TarInfo):
    """Member of a tar. A damaged header raises an error instead of ending the archive."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Member":
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except (tarfile.EmptyHeaderError, tarfile.TruncatedHeaderError):  # type: ignore[attr-defined]
            raise BrokenArchive("broken_container", "the tar has no end mark: it may be cut off") from None
        except tarfile.HeaderError as error:  # type: ignore[attr-defined]
            raise _broken(error) from None


class _Source:
    """Bytes of the archive. If these break, the archive does."""

    def __init__(self, file: BufferedReader) -> None:
        self.file = file

    def read(self, size: int) -> bytes:
        try:
            return self.file.read(size)
        except BadLine as error:
            raise BrokenArchive(error.code, str(error)) from None


def tar_members(path: Path, packing: str) -> Iterator[Content]:
    """Yield the files in a tar in their order, those that are not read with an empty `kind`.

    Each can be opened once, before the next is requested. Raises `BrokenArchive`. Folders, hidden files and
    the files below hidden folders are left out, as in data/raw.
    """
    with opened(path) as packed:
        need_no_page(packed, ARCHIVE)
        limit = growth_limit(packed)
        file = unpacked(packed, packing)
        try:
            if not file.peek(1):
                return
            with tarfile.open(
                fileobj=cast(Any, _Source(file)), mode="r|", tarinfo=_Member, bufsize=READ
            ) as archive:
                while member := archive.next():
                    archive.members.clear()  # type: ignore[attr-defined]
                    if not member.isdir() and is_data(member.name):
                        yield _content(archive, member, limit)
                _need_nothing_more(archive)
        except tarfile.TarError as error:
            raise _broken(error) from None


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, limit: int) -> Content:
    """Return the content of a member. A link or a device has none."""
    name = str(PurePosixPath(member.name))
    kind, packing = suffixes(name)
    is_read = member.isreg() and kind in STREAMED
    return Content(safe(name), kind if is_read else "", partial(_opened, archive, member, packing, limit))


@contextmanager
def _opened(
    archive: tarfile.TarFile, member: tarfile.TarInfo, packing: str, limit: int
) -> Iterator[BufferedReader]:
    """Open a member's text. Opening and reading raise `BadLine`, or `BrokenArchive`."""
    data = cast(IO[bytes], archive.extractfile(member))
    yield unpacked(BufferedReader(Pieces(_blocks(data), member.size), READ), packing, limit)


def _blocks(content: IO[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a member. Raises `BrokenArchive` if there are fewer than its header states."""
    try:
        while block := content.read(READ):
            yield block
    except tarfile.TarError as error:
        raise _broken(error) from None


def _need_nothing_more(archive: tarfile.TarFile) -> None:
    """Raise `BrokenArchive` if there is data after the archive's end mark, such as another archive."""
    while piece := archive.fileobj.read(READ):  # type: ignore[union-attr]
        if piece.strip(b"\0"):
            raise BrokenArchive(
                "broken_container",
                "something follows the tar's end mark, and it isn't read: unpack archives that were joined",
            )
