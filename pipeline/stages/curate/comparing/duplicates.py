"""Exact and near duplicates, and rows that make the same request, found in flat memory among any number of
rows.

Rows whose MinHash signatures agree in an LSH band (Leskovec, Rajaraman, Ullman, Mining of Massive Datasets,
ch. 3) are candidates; a candidate counts if the similarity that the entire signatures show reaches the
threshold. Keys and signatures are on disk. In memory are 12 bytes a row while keys are joined, 21 afterwards,
and twice as much while clusters are made.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.curate.comparing.features import ALGORITHM, RELATED
from pipeline.stages.curate.comparing.sketched import (
    BATCH,
    Labels,
    Pairs,
    Sketched,
    labels,
    to_first,
    unite,
    unjoined,
)
from pipeline.stages.curate.comparing.spill import Spill, groups_of

ROUNDS = 32  # of taking apart what is no longer alike; then the rest stays
# of clusters, for the statistics' histogram: how a bar is called, and the smallest size in it
SIZES = {"2": 2, "3": 3, "4-7": 4, "8-15": 8, "16+": 16}
Edges = tuple[Pairs, Pairs]  # to unite in one cluster, and in one group


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


def joined(sketched: Sketched, first: Labels, threshold: float, first_bytes: range) -> Iterator[Edges]:
    """The pairs of rows to unite that keys with these first bytes show: those of one cluster, and those of
    one group that no cluster has.

    `first` is the first row with the same content. What is united already isn't compared again, so another
    division of the keys gives other pairs, but always the same sets.
    """
    cluster, group = first.copy(), first.copy()
    none = np.zeros(0, np.int32)
    for name in ("asking", "divided"):
        for keys, rows in sketched.groups(name, first_bytes):
            a, b = unjoined(group, *to_first(keys, rows.astype(np.int32)))
            unite(group, a, b)
            yield (none, none), (a, b)
    related = min(threshold, RELATED)
    for name in ("entire", "family"):
        for a, b, alike in sketched.pairs(name, cluster, first, first_bytes):
            same, near = alike >= threshold, (alike >= related) & (alike < threshold)
            unite(cluster, a[same], b[same])
            unite(group, a[same | near], b[same | near])
            yield (a[same], b[same]), (a[near], b[near])
    for a, b, alike in sketched.pairs("request", group, first, first_bytes):
        near = alike >= related
        unite(group, a[near], b[near])
        yield (none, none), (a[near], b[near])


def clusters(sketched: Sketched, first: Labels, edges: Iterable[Edges], threshold: float) -> Clusters:
    """The clusters and groups of all rows, given what `joined` found for all keys."""
    cluster, group = first.copy(), first.copy()
    for same, related in edges:
        unite(cluster, *same)
        unite(group, *same)
        unite(group, *related)
    best, alike = _around_best(sketched, labels(cluster), first, threshold)
    rows = np.arange(len(sketched), dtype=np.int32)
    smallest = np.full(len(sketched), len(sketched), np.int32)
    np.minimum.at(smallest, best, rows)
    return Clusters(smallest[best], first, labels(group), best == rows, alike)


def first_rows(keys: Spill, rows: int) -> Labels:
    """For each of `rows` rows the first one with the same key."""
    first = np.arange(rows, dtype=np.int32)
    for group_keys, numbers in groups_of([keys]):
        same, places = to_first(group_keys, numbers.astype(np.int32))
        first[places] = same
    return first


def _around_best(
    sketched: Sketched, cluster: Labels, first: Labels, threshold: float
) -> tuple[Labels, NDArray[np.float32]]:
    """Every row's best row, which it is alike, and how much.

    Sets grow by chains, in which the ends may have little in common. So what is not alike the best row of its
    set makes a set of its own, with a best row of its own, until all are alike theirs.
    """
    worth = sketched.worth()
    best = best_of(cluster, worth)
    alike = np.ones(len(best), np.float32)
    far = np.flatnonzero(best != np.arange(len(best), dtype=np.int32)).astype(np.int32)
    for _ in range(ROUNDS):
        alike[far] = _similarity(sketched, far, best, first)
        far = far[alike[far] < threshold]
        order = far[np.lexsort((far, ~worth[far], cluster[far]))]
        best[order] = to_first(cluster[order], order)[0]
    best[far], alike[far] = far, 1
    return best, alike


def _similarity(sketched: Sketched, rows: Labels, best: Labels, first: Labels) -> NDArray[np.float32]:
    similarity = np.ones(len(rows), np.float32)
    for at in range(0, len(rows), BATCH):
        near = np.flatnonzero(first[rows[at : at + BATCH]] != first[best[rows[at : at + BATCH]]]) + at
        pairs = first[rows[near]], first[best[rows[near]]]
        similarity[near] = np.maximum(*(sketched.similarity(name, *pairs) for name in ("entire", "family")))
    return similarity


def best_of(cluster: Labels, worth: NDArray[np.uint64]) -> Labels:
    """For every row the row of its cluster with the highest worth, of equals the first."""
    highest = np.zeros(len(cluster), np.uint64)
    np.maximum.at(highest, cluster, worth)
    best = np.zeros(len(cluster), np.int32)
    for end in range(len(cluster), 0, -BATCH):  # backwards: the first row is written last
        rows = np.arange(end - 1, max(end - BATCH, 0) - 1, -1, dtype=np.int32)
        good = rows[worth[rows] == highest[cluster[rows]]]
        best[cluster[good]] = good
    return best[cluster]


def duplicate_counts(clusters: Clusters, threshold: float) -> dict[str, Any]:
    """Sizes of the clusters, and how many rows are copies."""
    sizes = np.bincount(clusters.cluster, minlength=1)
    sizes = sizes[sizes > 1]
    histogram, _ = np.histogram(sizes, [*SIZES.values(), np.inf])
    return {
        "exact_rows": int(clusters.exact.sum()),
        "near_rows": int(sizes.sum() - len(sizes) - clusters.exact.sum()),
        "clusters": len(sizes),
        "largest_cluster": int(sizes.max(initial=0)),
        "threshold": threshold,
        "algorithm": ALGORITHM,
        "histogram": dict(zip(SIZES, histogram.tolist(), strict=True)),
    }


def group_counts(group: NDArray[np.int32], kept: NDArray[np.bool_]) -> dict[str, int]:
    """Groups of related kept rows, which the split keeps together."""
    sizes = np.bincount(group[kept], minlength=1)
    return {"groups": int((sizes > 1).sum()), "rows_in_groups": int(sizes[sizes > 1].sum())}
