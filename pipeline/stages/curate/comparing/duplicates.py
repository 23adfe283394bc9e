"""Exact and near duplicates, and rows that make the same request, in flat memory for any number of rows.

Rows are candidates if their MinHash signatures agree in an LSH band (Leskovec, Rajaraman, Ullman, Mining of
Massive Datasets, ch. 3). A candidate counts if the similarity estimated from the entire signatures reaches
the threshold. Keys and signatures are on disk. Memory is 12 bytes a row while keys are joined, and some 40
while clusters are made.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.curate.comparing.features import RELATED
from pipeline.stages.curate.comparing.minhash import ALGORITHM
from pipeline.stages.curate.comparing.sketched import (
    BATCH,
    Labels,
    Sketched,
    labels,
    to_first,
    unite,
)
from pipeline.stages.curate.comparing.spill import Spill, groups_of

# Rounds of splitting rows that are not similar to their best row. After these, each that is left is a cluster
# of its own.
ROUNDS = 32
# Bars of the histogram of cluster sizes: label → smallest size in the bar.
SIZES = {"2": 2, "3": 3, "4-7": 4, "8-15": 8, "16+": 16}


@dataclass(frozen=True)
class Clusters:
    """Clusters and groups, one entry per row in the order in which the rows were added.

    The row with the highest reward of each cluster is kept (a row with a reward before those without). Of
    equal ones the row with the most trained characters is kept, then with the fewest redactions, then the
    first.
    """

    # Smallest index of a row in the same cluster: the exact and near duplicates of the kept row.
    cluster: Labels
    first: Labels  # index of the first row with exactly the same content
    # Smallest index of a row in the same group: clusters, and rows that make the same or nearly the same
    # request.
    group: Labels
    keep: NDArray[np.bool_]
    similarity: NDArray[np.float32]  # estimated Jaccard similarity to the cluster's kept row; 1 for that row

    @property
    def exact(self) -> NDArray[np.bool_]:
        """Return True for the rows that repeat an earlier one."""
        repeats: NDArray[np.bool_] = self.first != np.arange(len(self.first), dtype=np.int32)
        return repeats


def clusters_of(sketched: Sketched, first: Labels, threshold: float) -> Clusters:
    """Return the clusters and groups of all rows. `first` is the first row with the same content."""
    cluster, group = _united(sketched, first, threshold)
    best, alike = _around_best(sketched, labels(cluster), first, threshold)
    rows = np.arange(len(sketched), dtype=np.int32)
    smallest = np.full(len(sketched), len(sketched), np.int32)
    np.minimum.at(smallest, best, rows)
    return Clusters(smallest[best], first, labels(group), best == rows, alike)


def _united(sketched: Sketched, first: Labels, threshold: float) -> tuple[Labels, Labels]:
    """Return the sets of rows that are alike, and the sets of these that make the same or nearly the same
    request. Rows that are united already aren't compared again.
    """
    cluster = first.copy()
    group = first.copy()
    for name in ("asking", "divided"):
        for keys, rows in sketched.groups(name):
            unite(group, *to_first(keys, rows.astype(np.int32)))
    related = min(threshold, RELATED)
    for name in ("entire", "family"):
        for a, b, alike in sketched.pairs(name, cluster, first):
            same = alike >= threshold
            near = alike >= related
            unite(cluster, a[same], b[same])
            unite(group, a[near], b[near])
    for a, b, alike in sketched.pairs("request", group, first):
        near = alike >= related
        unite(group, a[near], b[near])
    return cluster, group


def first_rows(keys: Spill, rows: int) -> Labels:
    """Return the first row with the same key for each of `rows` rows."""
    first = np.arange(rows, dtype=np.int32)
    for group_keys, numbers in groups_of([keys]):
        same, places = to_first(group_keys, numbers.astype(np.int32))
        first[places] = same
    return first


def _around_best(
    sketched: Sketched, cluster: Labels, first: Labels, threshold: float
) -> tuple[Labels, NDArray[np.float32]]:
    """Return for each row the best row of its set, which it is similar to, and their similarity.

    Sets grow by chains, and the ends of a chain may have little in common. So rows that are not similar to
    the best row of their set make a set of their own with its own best row, until all are similar to theirs.
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
    best[far] = far
    alike[far] = 1
    return best, alike


def _similarity(sketched: Sketched, rows: Labels, best: Labels, first: Labels) -> NDArray[np.float32]:
    similarity = np.ones(len(rows), np.float32)
    for at in range(0, len(rows), BATCH):
        near = np.flatnonzero(first[rows[at : at + BATCH]] != first[best[rows[at : at + BATCH]]]) + at
        pairs = first[rows[near]], first[best[rows[near]]]
        similarity[near] = np.maximum(*(sketched.similarity(name, *pairs) for name in ("entire", "family")))
    return similarity


def best_of(cluster: Labels, worth: NDArray[np.uint64]) -> Labels:
    """Return the row with the highest worth in the cluster of each row, the first if several are equal."""
    highest = np.zeros(len(cluster), np.uint64)
    np.maximum.at(highest, cluster, worth)
    best = np.zeros(len(cluster), np.int32)
    for end in range(len(cluster), 0, -BATCH):  # Backwards, so that the first row is written last.
        rows = np.arange(end - 1, max(end - BATCH, 0) - 1, -1, dtype=np.int32)
        good = rows[worth[rows] == highest[cluster[rows]]]
        best[cluster[good]] = good
    return best[cluster]


def duplicate_counts(clusters: Clusters, threshold: float) -> dict[str, Any]:
    """Return the sizes of the clusters and the number of rows that are copies."""
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
    """Return counts of the groups of related kept rows, which the split keeps together."""
    sizes = np.bincount(group[kept], minlength=1)
    return {"groups": int((sizes > 1).sum()), "rows_in_groups": int(sizes[sizes > 1].sum())}
