"""Clean rows on disk while the rules that compare rows with each other are at work: in order, any row by its
index.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from pipeline.chat.rows import Row
from pipeline.stages.curate.batches import batches

BLOCK_ROWS, BLOCK_BYTES = 1024, 1 << 20
_SOURCE = re.compile(rb'\{"id":"[0-9a-f]{16}","source":("(?:[^"\\]|\\.)*")')


class Spool:
    """Rows as JSON lines in one file; only their offsets are in memory (8 bytes a row)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("w+b")
        self.lengths: list[NDArray[np.int32]] = []
        self.offsets: NDArray[np.int64] = np.zeros(1, np.int64)

    def append(self, lines: Sequence[bytes]) -> None:
        """Add rows, each a line with its newline."""
        self.file.writelines(lines)
        self.lengths.append(np.fromiter(map(len, lines), np.int32, len(lines)))

    def finish(self) -> None:
        """No row comes any more; from now on they can be read."""
        self.file.flush()
        self.offsets = np.cumsum(np.concatenate([np.zeros(1, np.int64), *self.lengths]))
        self.lengths.clear()

    def extend(self, lines: Sequence[bytes]) -> None:
        """Add rows behind all others, after `finish`."""
        self.file.seek(0, os.SEEK_END)
        self.lengths.append(np.diff(self.offsets).astype(np.int32))
        self.append(lines)
        self.finish()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def size(self, index: int) -> int:
        """The bytes of one row's line."""
        return int(self.offsets[index + 1] - self.offsets[index])

    def line(self, index: int) -> bytes:
        """One row's line."""
        return os.pread(self.file.fileno(), self.size(index), int(self.offsets[index]))

    def source(self, index: int) -> str:
        """FILE:LINE of one row."""
        return source_of(self.line(index))

    def row(self, index: int) -> Row:
        """One row, decoded."""
        row: Row = orjson.loads(self.line(index))
        return row

    def lines(self) -> Iterator[bytes]:
        """Every row's line, in order."""
        with self.path.open("rb", buffering=1 << 20) as file:
            yield from file

    def ranges(self) -> Iterator[tuple[int, int]]:
        """(offset, bytes) of neighboring rows, at most `BLOCK_ROWS` and `BLOCK_BYTES` (or one row), for
        `read_rows_at`.
        """
        for rows in batches(range(len(self)), self.size, BLOCK_BYTES, BLOCK_ROWS):
            first, last = rows[0], rows[-1] + 1
            yield int(self.offsets[first]), int(self.offsets[last] - self.offsets[first])


def spread_evenly(indices: NDArray[np.int64], most: int) -> list[int]:
    """At most `most` of the indices, spread evenly."""
    places = np.unique(np.linspace(0, max(len(indices) - 1, 0), min(most, len(indices))).astype(np.int64))
    return [int(index) for index in indices[places]]


def source_of(line: bytes) -> str:
    """FILE:LINE of a spooled row, without decoding the rest of it."""
    found = _SOURCE.match(line)
    if not found:
        raise RuntimeError(f"a spooled row begins with {line[:60]!r}")  # a bug of ours
    return str(orjson.loads(found[1]))


def read_rows_at(path: Path, offset: int, size: int) -> list[Row]:
    """The rows in that part of a spool's file."""
    with path.open("rb") as file:
        file.seek(offset)
        return [orjson.loads(line) for line in file.read(size).split(b"\n")[:-1]]
