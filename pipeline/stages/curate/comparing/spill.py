"""Records of a 64-bit key and a row, stored on disk and read back grouped by key: equality joins over any
number of rows in flat memory.

Records are collected into runs of `RUN` records. Each run is written ordered by the first byte of its keys,
with the index of the first record of each first byte. Reading merges neighboring first bytes until they have
about `PARTITION` records. All records of a key are then in memory at once, whatever the number of runs.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.curate.spool import batches

RUN = 1 << 18  # records, 3 MB
KEY, ROW = np.dtype(np.uint64), np.dtype(np.uint32)
PARTITION = 1 << 18  # records
Keys = NDArray[np.uint64]
Rows = NDArray[np.uint32]
_SLOTS = np.uint64((1 << 20) - 1)


class Spill:
    """Records in files of `folder`, 12 bytes each, to be read once they are finished. Keys have to be evenly
    distributed, as hashes are.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.keys_path, self.rows_path = folder / f"{name}.keys", folder / f"{name}.rows"
        self.runs_path = folder / f"{name}.npy"
        # Index of the first record of each first byte, for each run.
        self.runs: list[NDArray[np.int64]] = []
        self.keys, self.rows = np.empty(RUN, KEY), np.empty(RUN, ROW)
        self.held = 0  # records in memory
        self.written = 0  # records in the files

    def add(self, keys: Keys, rows: Rows) -> None:
        """Append records. Those of one key are read back in the order in which they were added."""
        at = 0
        while at < len(keys):
            size = min(len(self.keys) - self.held, len(keys) - at)
            self.keys[self.held : self.held + size] = keys[at : at + size]
            self.rows[self.held : self.held + size] = rows[at : at + size]
            self.held += size
            at += size
            if self.held == len(self.keys):
                self._write_run()

    def finish(self) -> "Spill":
        """Write the records in memory after the last one was added. Return the spill, ready to be read."""
        self._write_run()
        np.save(self.runs_path, np.array(self.runs))
        return self

    def counts(self) -> NDArray[np.int64]:
        """Return the number of records of each first byte."""
        counts: NDArray[np.int64] = np.diff(np.load(self.runs_path).sum(axis=0, dtype=np.int64))
        return counts

    def read(self, first: int, last: int) -> tuple[Keys, Rows]:
        """Return the records whose keys have a first byte from `first` to `last` - 1, run by run."""
        keys = list[Keys]()
        rows = list[Rows]()
        with self.keys_path.open("rb") as key_file, self.rows_path.open("rb") as row_file:
            for begins in np.load(self.runs_path)[:, [first, last]].tolist():
                for file, kind, arrays in ((key_file, KEY, keys), (row_file, ROW, rows)):
                    file.seek(begins[0] * kind.itemsize)
                    arrays.append(np.fromfile(file, kind, begins[1] - begins[0]))
        return np.concatenate(keys), np.concatenate(rows)

    def _write_run(self) -> None:
        keys, rows = self.keys[: self.held], self.rows[: self.held]
        first_byte = (keys >> np.uint64(56)).astype(np.uint8)
        order = np.argsort(first_byte, kind="stable")  # A stable sort of bytes is a radix sort.
        self.runs.append(offsets_of(np.bincount(first_byte, minlength=256)) + self.written)
        for path, column in ((self.keys_path, keys), (self.rows_path, rows)):
            with path.open("ab") as file:
                file.write(column[order].data)
        self.written += self.held
        self.held = 0


def groups_of(spills: Sequence[Spill], least: int = 2) -> Iterator[tuple[Keys, Rows]]:
    """Yield the records of every key that has `least` of them or more (2 at least) in all spills together.

    Records come a partition at a time: by key, then in the order added, one spill after the other.
    """
    counts = sum((spill.counts() for spill in spills), np.zeros(256, np.int64)).tolist()
    used_bytes = [byte for byte, count in enumerate(counts) if count]
    for partition in batches(used_bytes, counts.__getitem__, PARTITION, 256):
        read = [spill.read(partition[0], partition[-1] + 1) for spill in spills]
        keys, rows = (np.concatenate(column) for column in zip(*read, strict=True))
        likely = _repeated(keys)
        order = likely[np.argsort(keys[likely], kind="stable")]
        keys, rows = keys[order], rows[order]
        enough = sizes(keys) >= least
        yield keys[enough], rows[enough]


def offsets_of(counts: NDArray) -> NDArray[np.int64]:
    """Return where each of neighboring groups begins and the last ends: `counts` + 1 entries."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def differs(*columns: NDArray) -> NDArray[np.bool_]:
    """Return True for the records that differ from the one before them, and for the first."""
    new = np.ones(len(columns[0]), np.bool_)
    new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return new


def starts(keys: NDArray) -> NDArray[np.intp]:
    """Return the index at which each group of equal neighbors begins."""
    return np.flatnonzero(differs(keys))


def sizes(keys: NDArray) -> NDArray[np.intp]:
    """Return the size of the group of equal neighbors for every element."""
    counts = np.diff(starts(keys), append=len(keys))
    return np.repeat(counts, counts)


def ranks(keys: NDArray) -> NDArray[np.intp]:
    """Return the rank of every element in its group of equal neighbors, from 0."""
    begins = starts(keys)
    return np.arange(len(keys)) - np.repeat(begins, np.diff(begins, append=len(keys)))


def pieces(values: NDArray, keys: NDArray) -> list[NDArray]:
    """Split `values` into pieces, one for each group of equal neighbors in `keys`."""
    return np.split(values, starts(keys)[1:]) if len(keys) else []


def _repeated(keys: Keys) -> NDArray[np.intp]:
    """Return indices of all keys that occur twice or more and of few others, to leave less to sort."""
    slot = ((keys >> np.uint64(24)) & _SLOTS).astype(np.int64)
    return np.flatnonzero(np.bincount(slot, minlength=1)[slot] > 1)
