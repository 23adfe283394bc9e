"""The members of a zip archive, the form in which services provide their exports. Each is read like a file,
and never written to the disk.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from pathlib import Path
from zipfile import BadZipFile, ZipFile, ZipInfo

from pipeline.core.jsonl import BadLine
from pipeline.core.text import safe
from pipeline.intake.files.files import (
    STREAMED,
    ZIP,
    Content,
    Pieces,
    growth_limit,
    need_content,
    need_no_page,
    opened,
    suffixes,
    unpacked,
)
from pipeline.intake.files.members import is_data

PIECE = 1 << 16  # bytes
ENCRYPTED = 0x1  # bit of a member's flags


def zip_members(path: Path) -> Iterator[Content]:
    """Yield the members of an archive, sorted by name, those that are not read with an empty `kind`.

    Hidden files and those added by macOS are left out, as below data/raw. Raises `BadLine` if it is not an
    archive.
    """
    with opened(path) as file:
        need_content(file)
        need_no_page(file, ZIP)
        try:
            archive = ZipFile(file)
        except (BadZipFile, ValueError, OSError) as error:
            raise BadLine(
                "broken_container",
                f"this is no zip archive, or its end is missing ({error}): download it again",
            ) from None
        infos = [info for info in archive.infolist() if _is_file(info) and is_data(_name(info))]
        limit = growth_limit(file)
        if sum(info.file_size for info in infos if _kind(info)) > limit:
            raise BadLine("expands_too_much", f"unpacks to more than {limit >> 20} MiB: it isn't read")
        for info in sorted(infos, key=_name):
            _, packing = suffixes(info.filename)
            opener = partial(_opened, archive, info, packing, limit)
            yield Content(safe(_name(info)), _kind(info), opener)


def _name(info: ZipInfo) -> str:
    """Return a member's name. Some Windows programs write its folders with backslashes."""
    return info.filename.replace("\\", "/")


def _is_file(info: ZipInfo) -> bool:
    return not _name(info).endswith("/")


def _kind(info: ZipInfo) -> str:
    kind, _ = suffixes(info.filename)
    return kind if kind in STREAMED else ""


@contextmanager
def _opened(archive: ZipFile, info: ZipInfo, packing: str, limit: int) -> Iterator[BufferedReader]:
    """Open a member's text. Opening and reading raise `BadLine`."""
    pieces = Pieces(_pieces(archive, info), limit)
    yield unpacked(BufferedReader(pieces, PIECE), packing, limit)


def _pieces(archive: ZipFile, info: ZipInfo) -> Iterator[bytes]:
    """Yield the bytes of a member."""
    if info.flag_bits & ENCRYPTED:
        raise BadLine("unknown_container", "it is encrypted: unpack the archive with its password")
    try:
        with archive.open(info) as member:
            while piece := member.read(PIECE):
                yield piece
    except NotImplementedError:
        raise BadLine(
            "unknown_container", "it is packed in a way that Python doesn't unpack: unpack the archive"
        ) from None
    except (BadZipFile, EOFError, OSError, ValueError, zlib.error) as error:
        raise BadLine("broken_container", f"the archive breaks here ({error})") from None
