"""The features of rows on disk: written by block, joined by keys, read to compare."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.curate.comparing.features import Features
from pipeline.stages.curate.comparing.minhash import PERMUTATIONS, Sketch, similarity
from pipeline.stages.curate.comparing.spill import Keys, Rows, Spill, groups_of, pieces, sizes, starts
from pipeline.stages.curate.spool import Files

SIMILAR = ("entire", "family", "request")  # sketches in `Features`
PRINTS = "fingerprints"
KEYS = ("asking", "divided", PRINTS)  # other keys in `Features`
WORTH = "worth"
# Rows before it that a row of a band's bucket is compared with, in addition to the first. The work grows with
# rows, not pairs.
NEIGHBORS = 4
BATCH = 1 << 14  # pairs compared at a time
PAGE = 256  # rows whose signatures are read together, 32 KB
# Sets of rows that grow by pairs (union-find): `parent[i]` is a smaller row of row i's set, or row i itself
# if it is the smallest.
Labels = NDArray[np.int32]
Pairs = tuple[Labels, Labels]


class Sketches:
    """Writer of the features of all rows, block by block, into files of `folder` that `Sketched` reads."""

    def __init__(self, folder: Path) -> None:
        self.row = 0
        self.spills = {name: Spill(folder, name) for name in (*KEYS, *SIMILAR)}
        self.columns = {name: _column(folder, name).open("wb") for name in (*SIMILAR, WORTH)}

    def add(self, block: Features) -> None:
        """Add the next rows."""
        first = np.uint32(self.row)
        for name in KEYS:
            keys, rows = getattr(block, name)
            self.spills[name].add(keys, rows + first)
        for name in SIMILAR:
            sketch: Sketch = getattr(block, name)
            self.columns[name].write(np.ascontiguousarray(sketch.signatures).data)
            some = np.flatnonzero(sketch.some).astype(np.uint32)
            bands = sketch.bands
            self.spills[name].add(bands[some].ravel(), np.repeat(some + first, bands.shape[1]))
        self.columns[WORTH].write(block.worth.data)
        self.row += len(block.worth)

    def finish(self) -> None:
        """Close the files after the last row."""
        for spill in self.spills.values():
            spill.finish()
        for column in self.columns.values():
            column.close()


class Sketched:
    """Features of all `rows` in `folder`."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder = folder
        self.rows = rows
        self.files = Files()

    def __len__(self) -> int:
        return self.rows

    def groups(self, name: str) -> Iterator[tuple[Keys, Rows]]:
        """Yield the rows of every key that two or more of them have."""
        return groups_of([self.stored(name)])

    def stored(self, name: str) -> Spill:
        """Return the keys of that name."""
        return Spill(self.folder, name)

    def worth(self) -> NDArray[np.uint64]:
        """Return the worth of every row."""
        return np.fromfile(_column(self.folder, WORTH), np.uint64)

    def pairs(
        self, name: str, parent: Labels, first: Labels
    ) -> Iterator[tuple[Labels, Labels, NDArray[np.float32]]]:
        """Yield candidates by the bands of sketch `name`, and their similarity.

        Only pairs that `parent` does not have in one set (yet) are compared, and only the first of exact
        duplicates.
        """
        for keys, rows in self.groups(name):
            single = first[rows] == rows
            for a, b in _pairs(keys[single], rows[single].astype(np.int32)):
                in_two_sets = roots(parent, a) != roots(parent, b)
                # A pair may share more than one band.
                packed = np.unique(a[in_two_sets].astype(np.int64) << 32 | b[in_two_sets])
                for at in range(0, len(packed), BATCH):
                    batch = packed[at : at + BATCH]
                    left, right = (batch >> 32).astype(np.int32), batch.astype(np.int32)
                    yield left, right, self.similarity(name, left, right)

    def similarity(self, name: str, a: Labels, b: Labels) -> NDArray[np.float32]:
        """Estimate the Jaccard similarity of the rows `a[i]` and `b[i]` by their sketches `name`."""
        return similarity(self.signatures(name, a), self.signatures(name, b))

    def signatures(self, name: str, rows: Labels) -> NDArray[np.uint8]:
        """Return the signatures of the rows, shape (rows, PERMUTATIONS)."""
        signatures = np.empty((len(rows), PERMUTATIONS), np.uint8)
        order = np.argsort(rows, kind="stable")
        path = _column(self.folder, name)
        for near in pieces(order, rows[order] // PAGE):
            first = int(rows[near[0]])
            last = int(rows[near[-1]])
            page = self.files.read(path, (last - first + 1) * PERMUTATIONS, first * PERMUTATIONS)
            signatures[near] = np.frombuffer(page, np.uint8).reshape(-1, PERMUTATIONS)[rows[near] - first]
        return signatures


def _column(folder: Path, name: str) -> Path:
    return folder / f"{name}.column"


def _pairs(keys: Keys, rows: Labels) -> Iterator[Pairs]:
    """Yield pairs of rows with a shared key: each with the `NEIGHBORS` before it and its group's first."""
    for distance in range(1, NEIGHBORS + 1):
        same = np.flatnonzero(keys[distance:] == keys[:-distance])
        yield rows[same], rows[same + distance]
    far = sizes(keys) > NEIGHBORS + 1
    yield to_first(keys[far], rows[far])


def labels(parent: Labels) -> Labels:
    """Set every entry of `parent` to the smallest row of its set, in place, and return it."""
    while True:
        higher = parent[parent]
        if np.array_equal(parent, higher):
            return parent
        parent[:] = higher


def roots(parent: Labels, rows: Labels) -> Labels:
    """Return the smallest row of each row's set. The walk shortens the paths."""
    while True:
        up = parent[rows]
        higher = parent[up]
        if np.array_equal(up, higher):
            return up
        parent[rows] = higher


def unite(parent: Labels, a: Labels, b: Labels) -> None:
    """Put the rows `a[i]` and `b[i]` into one set, whose root is its smallest row."""
    while len(a):
        a, b = roots(parent, a), roots(parent, b)
        a, b = a[a != b], b[a != b]
        # The smallest of several smaller roots is set; the others follow in the next iteration.
        np.minimum.at(parent, np.maximum(a, b), np.minimum(a, b))


def unjoined(parent: Labels, a: Labels, b: Labels) -> Pairs:
    """Return the pairs that are not in one set."""
    differ = roots(parent, a) != roots(parent, b)
    return a[differ], b[differ]


def to_first(keys: NDArray, rows: NDArray) -> Pairs:
    """Return (first row with the key, row) for all records, which are grouped by key."""
    begins = starts(keys)
    return np.repeat(rows[begins], np.diff(begins, append=len(keys))), rows
