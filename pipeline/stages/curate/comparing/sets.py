"""Sets of rows that grow by pairs of them (union-find), for many pairs at a time: `parent[i]` is a smaller
row of row i's set, or row i itself if it is the smallest.
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.curate.comparing.spill import starts

Labels = NDArray[np.int32]
Pairs = tuple[Labels, Labels]


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


def apart(parent: Labels, a: Labels, b: Labels) -> Pairs:
    """The pairs that are not in one set."""
    apart = roots(parent, a) != roots(parent, b)
    return a[apart], b[apart]


def to_first(keys: NDArray, rows: NDArray) -> Pairs:
    """(first row with the key, row) for all records, which are grouped by key."""
    begins = starts(keys)
    return np.repeat(rows[begins], np.diff(begins, append=len(keys))), rows
