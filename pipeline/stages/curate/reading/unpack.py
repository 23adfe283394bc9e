"""gzip and Zstandard files as streams of plain bytes, of bounded growth: a file that breaks or bursts says so
as a `BadLine`.
"""

import gzip
import os
import zlib
from collections.abc import Iterator
from io import BufferedReader, RawIOBase
from typing import Any

from pipeline.core.jsonl import BadLine

ALWAYS_ALLOWED = 256 << 20  # bytes that any file may unpack to
MAX_GROWTH = 200  # times its size on disk that a larger one may unpack to; text rarely reaches 20
GZIP_READ = 1 << 16
ZSTD_FED = 512  # bytes; 4 of them can unpack to 128 KiB, and the library unpacks all that it is fed
ZSTD_WINDOW = 128 << 20  # bytes; `zstd -T0 --ultra -22` needs as much


def unpacked(file: BufferedReader, packing: str) -> BufferedReader:
    """The plain bytes of a file packed with ".gz", ".zst" or "" (itself). Reading raises `BadLine` where it
    breaks or grows beyond measure.
    """
    if not packing:
        return file
    pieces = _gzip_pieces(file) if packing == ".gz" else _zstd_pieces(file)
    return BufferedReader(_Pieces(pieces, growth_limit(file)), GZIP_READ)


def growth_limit(file: BufferedReader) -> int:
    """The bytes that the file may unpack to."""
    return max(ALWAYS_ALLOWED, MAX_GROWTH * os.fstat(file.fileno()).st_size)


class _Pieces(RawIOBase):
    """Byte strings, one after the other, as a file of at most `limit` bytes."""

    def __init__(self, pieces: Iterator[bytes], limit: int) -> None:
        self.pieces, self.limit = pieces, limit
        self.piece = memoryview(b"")
        self.total = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.piece:
            piece = next(self.pieces, None)
            if piece is None:
                return 0
            self.piece = memoryview(piece)
            self.total += len(piece)
            if self.total > self.limit:
                raise BadLine(
                    "expands_too_much", f"unpacks to more than {self.limit >> 20} MiB: it isn't read on"
                )
        count = min(len(buffer), len(self.piece))
        buffer[:count] = self.piece[:count]
        self.piece = self.piece[count:]
        return count


def _gzip_pieces(file: BufferedReader) -> Iterator[bytes]:
    """Of all members of the file."""
    try:
        with gzip.GzipFile(fileobj=file) as members:
            while piece := members.read1(GZIP_READ):
                yield piece
    except (OSError, EOFError, zlib.error) as error:
        raise BadLine("broken_container", f"the gzip data breaks here ({error})") from None


def _zstd_pieces(file: BufferedReader) -> Iterator[bytes]:
    """Of all frames of the file."""
    import zstandard  # not needed by most

    library = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    frame = None
    try:
        while fed := file.read(ZSTD_FED):
            while fed:
                frame = frame or library.decompressobj()
                yield frame.decompress(fed)
                fed = frame.unused_data
                if frame.eof:
                    frame = None
    except zstandard.ZstdError as error:
        raise BadLine("broken_container", f"the Zstandard data breaks here ({error})") from None
    if frame is not None:
        raise BadLine("broken_container", "the Zstandard data ends in the middle")
