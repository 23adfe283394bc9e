"""The features of rows on disk, a folder a shard: written by block, joined by keys, read where compared."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.curate.comparing.features import PERMUTATIONS, Features, Sketch, similarity
from pipeline.stages.curate.comparing.spill import Keys, Rows, Spill, groups_of, pieces, sizes, starts
from pipeline.stages.curate.spool import Files

SIMILAR = ("entire", "family", "request")  # sketches that `Features` has
PRINTS = "fingerprints"
KEYS = ("asking", "divided", PRINTS)  # other keys that it has
WORTH = "worth"
# in a band's bucket a row is compared with this many before it and with the first: work grows with rows, not
# pairs
NEIGHBORS = 4
BATCH = 1 << 14  # pairs compared at a time
PAGE = 256  # rows whose signatures are read together, 32 KB
# sets of rows that grow by pairs of them (union-find): `parent[i]` is a smaller row of row i's set, or row i
# itself if it is the smallest
Labels = NDArray[np.int32]
Pairs = tuple[Labels, Labels]


class Sketches:
    """Takes the features of neighboring rows, the first of which is `row`, block by block, into files of
    `folder` that `joined` and `clusters` read.
    """

    def __init__(self, folder: Path, row: int) -> None:
        self.row = row
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
        """No row comes any more."""
        for spill in self.spills.values():
            spill.finish()
        for column in self.columns.values():
            column.close()


class Sketched:
    """The features of all rows in `folders`; `bases` is the row with which each begins, then the number."""

    def __init__(self, folders: Sequence[Path], bases: Sequence[int]) -> None:
        self.folders, self.bases = folders, np.array(bases)
        self.files = Files()

    def __len__(self) -> int:
        return int(self.bases[-1])

    def groups(self, name: str, first_bytes: range) -> Iterator[tuple[Keys, Rows]]:
        """The rows of every key that two or more of them have."""
        return groups_of(self.stored(name), 2, first_bytes)

    def stored(self, name: str) -> list[Spill]:
        """The keys of that name, by folder."""
        return [Spill(folder, name) for folder in self.folders]

    def worth(self) -> NDArray[np.uint64]:
        """Of every row."""
        return np.concatenate([np.fromfile(_column(folder, WORTH), np.uint64) for folder in self.folders])

    def pairs(
        self, name: str, parent: Labels, first: Labels, first_bytes: range
    ) -> Iterator[tuple[Labels, Labels, NDArray[np.float32]]]:
        """Candidates by the bands of sketch `name` that `parent` doesn't have in one set (yet), and their
        similarity; of exact duplicates only the first is compared.
        """
        for keys, rows in self.groups(name, first_bytes):
            single = first[rows] == rows
            for a, b in _pairs(keys[single], rows[single].astype(np.int32)):
                in_two_sets = roots(parent, a) != roots(parent, b)
                # a pair may share more than one band
                packed = np.unique(a[in_two_sets].astype(np.int64) << 32 | b[in_two_sets])
                for at in range(0, len(packed), BATCH):
                    batch = packed[at : at + BATCH]
                    left, right = (batch >> 32).astype(np.int32), batch.astype(np.int32)
                    yield left, right, self.similarity(name, left, right)

    def similarity(self, name: str, a: Labels, b: Labels) -> NDArray[np.float32]:
        """Estimated Jaccard similarity of the rows `a[i]` and `b[i]` by their sketches `name`."""
        return similarity(self.signatures(name, a), self.signatures(name, b))

    def signatures(self, name: str, rows: Labels) -> NDArray[np.uint8]:
        """(rows, PERMUTATIONS)."""
        signatures = np.empty((len(rows), PERMUTATIONS), np.uint8)
        folder = np.searchsorted(self.bases, rows, "right") - 1
        places = rows - self.bases[folder]
        order = np.lexsort((places, folder))
        for near in pieces(order, folder[order] << 32 | places[order] // PAGE):
            first, last = int(places[near[0]]), int(places[near[-1]])
            path = _column(self.folders[folder[near[0]]], name)
            page = self.files.read(path, (last - first + 1) * PERMUTATIONS, first * PERMUTATIONS)
            signatures[near] = np.frombuffer(page, np.uint8).reshape(-1, PERMUTATIONS)[places[near] - first]
        return signatures


def _column(folder: Path, name: str) -> Path:
    return folder / f"{name}.column"


def _pairs(keys: Keys, rows: Labels) -> Iterator[Pairs]:
    """Pairs of rows that share a key: each with the `NEIGHBORS` before it, and with its group's first."""
    for distance in range(1, NEIGHBORS + 1):
        same = np.flatnonzero(keys[distance:] == keys[:-distance])
        yield rows[same], rows[same + distance]
    far = sizes(keys) > NEIGHBORS + 1
    yield to_first(keys[far], rows[far])


def labels(parent: Labels) -> Labels:
    """`parent` itself, with every row's entry now the smallest row of its set."""
    while True:
        higher = parent[parent]
        if np.array_equal(parent, higher):
            return parent
        parent[:] = higher


def roots(parent: Labels, rows: Labels) -> Labels:
    """The smallest row of each row's set; paths get shorter by being walked."""
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
        # of several smaller roots the smallest; the others come next time round
        np.minimum.at(parent, np.maximum(a, b), np.minimum(a, b))


def unjoined(parent: Labels, a: Labels, b: Labels) -> Pairs:
    """The pairs that are not in one set."""
    differ = roots(parent, a) != roots(parent, b)
    return a[differ], b[differ]


def to_first(keys: NDArray, rows: NDArray) -> Pairs:
    """(first row with the key, row) for all records, which are grouped by key."""
    begins = starts(keys)
    return np.repeat(rows[begins], np.diff(begins, append=len(keys))), rows
