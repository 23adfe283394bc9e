"""Clean rows on disk for the rules that compare rows: read in order, or any row by its index."""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from pipeline.chat.rows import Row

BLOCK_ROWS = 1024
BLOCK_BYTES = 1 << 20
OFFSET = 8  # bytes of an offset
Item = TypeVar("Item")


class Spool:
    """Writer of rows as JSON lines in one file, and of their offsets (8 bytes a row) in another
    next to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("wb", buffering=1 << 20)
        self.begins = _offsets_path(path).open("wb")
        self.size = 0
        self.begins.write(bytes(OFFSET))

    def append(self, lines: Sequence[bytes]) -> None:
        """Add rows, each a line with its newline."""
        self.file.writelines(lines)
        ends = [*accumulate(map(len, lines), initial=self.size)]
        self.begins.write(np.array(ends[1:], np.int64).data)
        self.size = ends[-1]

    def finish(self) -> None:
        """Close the files after the last row. `Rows` can read them from now on."""
        self.file.close()
        self.begins.close()


class Rows:
    """Rows of finished spools, one spool after the other, by their index through all of them.

    None of them is in memory. `bases` is the index of each spool's first row, followed by the number of rows.
    """

    def __init__(self, spools: Sequence[Path]) -> None:
        self.spools = list(spools)
        self.files = Files()
        counts = [_offsets_path(path).stat().st_size // OFFSET - 1 for path in self.spools]
        self.bases = [0, *accumulate(counts)]

    def __len__(self) -> int:
        return self.bases[-1]

    def line(self, index: int) -> bytes:
        """Return the line of one row."""
        spool = bisect_right(self.bases, index) - 1
        path = self.spools[spool]
        at = (index - self.bases[spool]) * OFFSET
        begin, end = np.frombuffer(self.files.read(_offsets_path(path), 2 * OFFSET, at), np.int64).tolist()
        return self.files.read(path, end - begin, begin)

    def source(self, index: int) -> str:
        """Return FILE:LINE of one row."""
        return str(self.row(index)["source"])

    def row(self, index: int) -> Row:
        """Return one row, decoded."""
        row: Row = orjson.loads(self.line(index))
        return row

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield (offset, bytes) of neighboring rows of the first spool for `read_rows_at`.

        A range is at most `BLOCK_ROWS` rows and `BLOCK_BYTES` bytes, or a single larger row.
        """
        offsets = np.fromfile(_offsets_path(self.spools[0]), np.int64)
        for rows in batches(
            range(len(offsets) - 1), lambda row: int(offsets[row + 1] - offsets[row]), BLOCK_BYTES, BLOCK_ROWS
        ):
            first, last = rows[0], rows[-1] + 1
            yield int(offsets[first]), int(offsets[last] - offsets[first])


class Files:
    """Random access to a few files, which stay open."""

    def __init__(self) -> None:
        self.open: dict[Path, int] = {}

    def read(self, path: Path, size: int, offset: int) -> bytes:
        """Return `size` bytes from `offset` on."""
        if path not in self.open:
            self.open[path] = os.open(path, os.O_RDONLY)
        return os.pread(self.open[path], size, offset)

    def __del__(self) -> None:
        for file in self.open.values():
            os.close(file)


def _offsets_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.offsets")


def spread_evenly(indices: NDArray[np.int64], most: int) -> list[int]:
    """Return at most `most` of the indices, spread evenly."""
    places = np.unique(np.linspace(0, max(len(indices) - 1, 0), min(most, len(indices))).astype(np.int64))
    return [int(index) for index in indices[places]]


def read_rows_at(path: Path, offset: int, size: int) -> list[Row]:
    """Return the rows in that part of a spool's file."""
    with path.open("rb") as file:
        file.seek(offset)
        return [orjson.loads(line) for line in file.read(size).split(b"\n")[:-1]]


def batches(
    items: Iterable[Item], size: Callable[[Item], int], limit: int, most: int
) -> Iterator[list[Item]]:
    """Yield lists of neighboring items: `most` at most, of summed size `limit` at most (or one larger)."""
    batch: list[Item] = []
    held = 0
    for item in items:
        if batch and (len(batch) == most or held + size(item) > limit):
            yield batch
            batch = []
            held = 0
        batch.append(item)
        held += size(item)
    if batch:
        yield batch
