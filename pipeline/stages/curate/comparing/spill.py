"""Records of a 64-bit key and a row, kept on disk and given back grouped by key: equality joins over any
number of rows in flat memory.

Records are gathered to runs of `RUN` records; each run is written ordered by the first byte of its keys, with
a directory of where each first byte begins. To read, neighboring first bytes are taken together until they
hold about `PARTITION` records: all records of a key are then in memory at once, whatever the number of runs.
"""

from collections.abc import Iterator
from io import BufferedRandom
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
from numpy.typing import NDArray

RUN = 1 << 18  # records, 3 MB
PARTITION = 1 << 18  # records
Keys = NDArray[np.uint64]
Rows = NDArray[np.uint32]
_SLOTS = np.uint64((1 << 20) - 1)


class Spill:
    """Holds 12 bytes per record in a temporary file in `folder`. Keys have to be evenly spread, as hashes
    are.
    """

    def __init__(self, folder: Path) -> None:
        self.file = scratch_file(folder)
        self.directory: list[
            tuple[int, NDArray[np.int64]]
        ] = []  # of each run: its offset, and where each first byte begins
        self.keys, self.rows = np.empty(RUN, np.uint64), np.empty(RUN, np.uint32)
        self.held = 0

    def add(self, keys: Keys, rows: Rows) -> None:
        """Append records; those of one key come back in the order in which they were added."""
        at = 0
        while at < len(keys):
            size = min(RUN - self.held, len(keys) - at)
            self.keys[self.held : self.held + size] = keys[at : at + size]
            self.rows[self.held : self.held + size] = rows[at : at + size]
            self.held += size
            at += size
            if self.held == RUN:
                self._write_run()

    def groups(self, least: int = 2) -> Iterator[tuple[Keys, Rows]]:
        """The records of every key that has `least` of them or more (2 at least), a partition at a time: by
        key, then in the order added.
        """
        if self.held:
            self._write_run()
        for first, last in self._partitions():
            keys, rows = self._read(first, last)
            likely = _repeated(keys)
            keys, rows = keys[likely], rows[likely]
            order = np.argsort(keys, kind="stable")
            keys, rows = keys[order], rows[order]
            enough = sizes(keys) >= least
            yield keys[enough], rows[enough]

    def _write_run(self) -> None:
        keys, rows = self.keys[: self.held], self.rows[: self.held]
        first_byte = (keys >> np.uint64(56)).astype(np.uint8)
        order = np.argsort(first_byte, kind="stable")  # of bytes: a radix sort
        begins = offsets_of(np.bincount(first_byte, minlength=256))
        self.directory.append((self.file.seek(0, 2), begins))
        self.file.write(keys[order].data)
        self.file.write(rows[order].data)
        self.held = 0

    def _partitions(self) -> Iterator[tuple[int, int]]:
        """Ranges of first bytes, each with at most `PARTITION` records or a single byte."""
        counts = np.diff(sum((begins for _, begins in self.directory), np.zeros(257, np.int64)))
        first, held = 0, 0
        for byte, count in enumerate(counts.tolist()):
            if held and held + count > PARTITION:
                yield first, byte
                first, held = byte, 0
            held += count
        if held:
            yield first, 256

    def _read(self, first: int, last: int) -> tuple[Keys, Rows]:
        ranges = [
            (offset, int(begins[256]), int(begins[first]), int(begins[last]))
            for offset, begins in self.directory
        ]
        total = sum(stop - start for _, _, start, stop in ranges)
        keys, rows = np.empty(total, np.uint64), np.empty(total, np.uint32)
        at = 0
        for offset, run, start, stop in ranges:
            self.file.seek(offset + 8 * start)
            self.file.readinto(keys[at : at + stop - start].data)
            self.file.seek(offset + 8 * run + 4 * start)
            self.file.readinto(rows[at : at + stop - start].data)
            at += stop - start
        return keys, rows


def scratch_file(folder: Path) -> BufferedRandom:
    """A file without a name in `folder`, which goes with its last reference."""
    file = TemporaryFile(dir=folder)  # noqa: SIM115 (closed with its last reference)
    assert isinstance(file, BufferedRandom)
    return file


def offsets_of(counts: NDArray) -> NDArray[np.int64]:
    """Where each of neighboring groups of these sizes begins, and where the last one ends: one entry more
    than `counts`.
    """
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def starts(keys: NDArray) -> NDArray[np.intp]:
    """Where each group of equal neighbors begins."""
    new = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    return np.flatnonzero(new)


def sizes(keys: NDArray) -> NDArray[np.intp]:
    """For every element the size of its group of equal neighbors."""
    counts = np.diff(np.append(starts(keys), len(keys)))
    return np.repeat(counts, counts)


def _repeated(keys: Keys) -> NDArray[np.intp]:
    """Indices that hold all keys which occur twice or more and few others: sorting those alone is quicker
    than sorting all.
    """
    slot = ((keys >> np.uint64(24)) & _SLOTS).astype(np.int64)
    return np.flatnonzero(np.bincount(slot, minlength=1)[slot] > 1)
