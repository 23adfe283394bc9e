"""Exact and near duplicates, and rows that make the same request, found in flat memory among any number of
rows.

Rows whose MinHash signatures agree in an LSH band (Leskovec, Rajaraman, Ullman, Mining of Massive Datasets,
ch. 3) are candidates; a candidate counts if the similarity that the entire signatures show reaches the
threshold. Keys and signatures are on disk; in memory are 21 bytes a row, twice as much while clusters are
made.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.curate.comparing.features import RELATED, Features
from pipeline.stages.curate.comparing.minhash import PERMUTATIONS, Sketch, similarity
from pipeline.stages.curate.comparing.spill import Keys, Spill, pieces, scratch_file, sizes, starts

ROUNDS = 32  # of taking apart what is no longer alike; then the rest stays
# in a band's bucket a row is compared with so many before it and with the first: work grows with rows, not
# pairs
NEIGHBORS = 4
_BATCH = 1 << 14  # pairs compared at a time
_PAGE = 256  # rows whose signatures are read together, 32 KB
Labels = NDArray[np.int32]
Pairs = tuple[Labels, Labels]


@dataclass(frozen=True)
class Clusters:
    """One entry per row, in the order in which they were added.

    Of each cluster the row with the highest reward is kept (one with a reward before those without); of
    equals the one with the most trained characters, then with the fewest redactions, then the first.
    """

    # smallest index of a row in the same cluster: of exact and near duplicates of its kept row
    cluster: Labels
    first: Labels  # index of the first row with exactly the same content
    # smallest index of a row in the same group: of clusters, and of rows that make the same or nearly the
    # same request
    group: Labels
    keep: NDArray[np.bool_]
    similarity: NDArray[np.float32]  # estimated Jaccard similarity to the cluster's kept row; 1 for that row

    @property
    def exact(self) -> NDArray[np.bool_]:
        """Rows that repeat an earlier one."""
        repeats: NDArray[np.bool_] = self.first != np.arange(len(self.first), dtype=np.int32)
        return repeats


class Index:
    """Takes the features of all rows, block by block, and finds the clusters; `folder` takes its files."""

    def __init__(self, folder: Path, threshold: float) -> None:
        self.exact, self.asking, self.divided = (Spill(folder) for _ in range(3))
        self.entire, self.family, self.request = (Similar(folder) for _ in range(3))
        self.threshold, self.related = threshold, min(threshold, RELATED)
        self.worth = scratch_file(folder)
        self.rows = 0

    def add(self, block: Features) -> None:
        """Add the next rows."""
        first, count = np.uint32(self.rows), len(block.exact)
        self.exact.add(block.exact, np.arange(count, dtype=np.uint32) + first)
        for spill, (keys, rows) in ((self.asking, block.asking), (self.divided, block.divided)):
            spill.add(keys, rows + first)
        for similar, sketch in (
            (self.entire, block.entire),
            (self.family, block.family),
            (self.request, block.request),
        ):
            similar.add(sketch, first)
        self.worth.write(block.worth.data)
        self.rows += count

    def clusters(self) -> Clusters:
        """The clusters and groups of all rows added."""
        cluster = np.arange(self.rows, dtype=np.int32)
        for keys, rows in self.exact.groups():
            unite(cluster, *_to_first(keys, rows.astype(np.int32)))
        first = labels(cluster).copy()
        group = cluster.copy()
        for same in (self.asking, self.divided):
            for keys, rows in same.groups():
                unite(group, *_to_first(keys, rows.astype(np.int32)))
        for similar in (self.entire, self.family):
            for a, b, alike in similar.pairs(cluster, first):
                unite(cluster, a[alike >= self.threshold], b[alike >= self.threshold])
                unite(group, a[alike >= self.related], b[alike >= self.related])
        for a, b, alike in self.request.pairs(group, first):
            unite(group, a[alike >= self.related], b[alike >= self.related])
        best, alike = self._around_best(labels(cluster), first)
        smallest = np.full(self.rows, self.rows, np.int32)
        rows = np.arange(self.rows, dtype=np.int32)
        np.minimum.at(smallest, best, rows)
        return Clusters(smallest[best], first, labels(group), best == rows, alike)

    def _around_best(self, cluster: Labels, first: Labels) -> tuple[Labels, NDArray[np.float32]]:
        """Every row's best row, which it is alike, and how much.

        Sets grow by chains, in which the ends may have little in common. So what is not alike the best row of
        its set makes a set of its own, with a best row of its own, until all are alike theirs.
        """
        self.worth.seek(0)
        worth = np.fromfile(self.worth, np.uint64)
        best = best_of(cluster, worth)
        alike = np.ones(self.rows, np.float32)
        far = np.flatnonzero(best != np.arange(self.rows, dtype=np.int32)).astype(np.int32)
        for _ in range(ROUNDS):
            alike[far] = self._similarity(far, best, first)
            far = far[alike[far] < self.threshold]
            order = far[np.lexsort((far, ~worth[far], cluster[far]))]
            best[order] = _to_first(cluster[order], order)[0]
        best[far], alike[far] = far, 1
        return best, alike

    def _similarity(self, rows: Labels, best: Labels, first: Labels) -> NDArray[np.float32]:
        found = np.ones(len(rows), np.float32)
        for at in range(0, len(rows), _BATCH):
            some = np.flatnonzero(first[rows[at : at + _BATCH]] != first[best[rows[at : at + _BATCH]]]) + at
            pairs = first[rows[some]], first[best[rows[some]]]
            found[some] = np.maximum(self.entire.similarity(*pairs), self.family.similarity(*pairs))
        return found


class Similar:
    """Finds rows with similar sketches."""

    def __init__(self, folder: Path) -> None:
        self.bands, self.signatures = Spill(folder), scratch_file(folder)

    def add(self, sketch: Sketch, first: np.uint32) -> None:
        """Add the sketches of the next rows, counted from `first`."""
        self.signatures.write(np.ascontiguousarray(sketch.signatures).data)
        some = np.flatnonzero(sketch.some).astype(np.uint32)
        self.bands.add(sketch.bands[some].ravel(), np.repeat(some + first, sketch.bands.shape[1]))

    def pairs(self, parent: Labels, first: Labels) -> Iterator[tuple[Labels, Labels, NDArray[np.float32]]]:
        """Candidates that `parent` doesn't have in one set (yet), and their similarity; of exact duplicates
        only the first is compared.
        """
        self.signatures.flush()
        for keys, rows in self.bands.groups():
            single = first[rows] == rows
            for a, b in _pairs(keys[single], rows[single].astype(np.int32)):
                apart = roots(parent, a) != roots(parent, b)
                # a pair may share more than one band
                packed = np.unique(a[apart].astype(np.int64) << 32 | b[apart])
                for at in range(0, len(packed), _BATCH):
                    some = packed[at : at + _BATCH]
                    left, right = (some >> 32).astype(np.int32), some.astype(np.int32)
                    yield left, right, self.similarity(left, right)

    def similarity(self, a: Labels, b: Labels) -> NDArray[np.float32]:
        """Estimated Jaccard similarity of the rows `a[i]` and `b[i]`."""
        return similarity(self._signatures_of(a), self._signatures_of(b))

    def _signatures_of(self, rows: Labels) -> NDArray[np.uint8]:
        found = np.empty((len(rows), PERMUTATIONS), np.uint8)
        order = np.argsort(rows)
        for near in pieces(order, rows[order] // _PAGE):
            first, last = int(rows[near[0]]), int(rows[near[-1]])
            page = os.pread(self.signatures.fileno(), (last - first + 1) * PERMUTATIONS, first * PERMUTATIONS)
            found[near] = np.frombuffer(page, np.uint8).reshape(-1, PERMUTATIONS)[rows[near] - first]
        return found


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


def best_of(cluster: Labels, worth: NDArray[np.uint64]) -> Labels:
    """For every row the row of its cluster with the highest worth, of equals the first."""
    highest = np.zeros(len(cluster), np.uint64)
    np.maximum.at(highest, cluster, worth)
    best = np.zeros(len(cluster), np.int32)
    for end in range(len(cluster), 0, -_BATCH):  # backwards: the first row is written last
        rows = np.arange(end - 1, max(end - _BATCH, 0) - 1, -1, dtype=np.int32)
        good = rows[worth[rows] == highest[cluster[rows]]]
        best[cluster[good]] = good
    return best[cluster]


def _to_first(keys: NDArray, rows: NDArray) -> Pairs:
    """(first row with the key, row) for all records, which are grouped by key."""
    begins = starts(keys)
    return np.repeat(rows[begins], np.diff(begins, append=len(keys))), rows


def _pairs(keys: Keys, rows: Labels) -> Iterator[Pairs]:
    """Pairs of rows that share a key: each with the `NEIGHBORS` before it, and with the first of its
    group.
    """
    for distance in range(1, NEIGHBORS + 1):
        same = np.flatnonzero(keys[distance:] == keys[:-distance])
        yield rows[same], rows[same + distance]
    far = sizes(keys) > NEIGHBORS + 1
    yield _to_first(keys[far], rows[far])
