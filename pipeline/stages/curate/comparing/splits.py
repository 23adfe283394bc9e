"""Which split a row belongs to: whole groups of related rows, every domain in proportion."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.curate.comparing.shingles import mix

SPLITS = ("train", "val", "test")
TRAIN, VAL, TEST = range(3)


def draws(keys: NDArray[np.uint64], purpose: str, seed: int) -> NDArray[np.uint64]:
    """A uniform 64-bit number per key, other for every purpose and seed."""
    salt = int.from_bytes(hashlib.sha256(f"{purpose}:{seed}".encode()).digest()[:8], "big")
    return mix(keys ^ np.uint64(salt))


def assign_splits(
    group: NDArray[np.int32],
    domain: NDArray[np.int32],
    keep: NDArray[np.bool_],
    keys: NDArray[np.uint64],
    *,
    seed: int,
    val_fraction: float,
    test_fraction: float,
) -> NDArray[np.uint8]:
    """The split (`TRAIN`, `VAL` or `TEST`) of every row; of rows that are not kept too, that of their group.

    `group[i]` is the smallest index of a row related to row i; a group is never torn. Of every domain the
    wanted share of kept rows goes to test and to val, as nearly as whole groups allow; a group counts for the
    domain of its first kept row. Groups are taken in the order of a draw from seed and content (the smallest
    of `keys`, 64 bits of each row's id), test from one end and val from the other: a row mostly stays where
    it is when others come, and test is the same for any `val_fraction`.
    """
    leaders, sizes, stratum, lowest = _groups(group, domain, keep, keys)
    taken = np.zeros(len(group), np.uint8)
    by_draw = np.argsort(draws(lowest, "split", seed), kind="stable")
    leaders, sizes, stratum = leaders[by_draw], sizes[by_draw], stratum[by_draw]
    rows = np.bincount(stratum, weights=sizes).astype(np.int64)
    for which, fraction, step, least in ((TEST, test_fraction, 1, 1), (VAL, val_fraction, -1, 0)):
        for number, quota in enumerate(apportion(rows, fraction, least).tolist()):
            own = np.flatnonzero(stratum == number)[::step]
            _take(leaders[own], sizes[own], quota, taken, which)
    return taken[group]


def _groups(
    group: NDArray[np.int32], domain: NDArray[np.int32], keep: NDArray[np.bool_], keys: NDArray[np.uint64]
) -> tuple[NDArray[np.int32], NDArray[np.intp], NDArray[np.int32], NDArray[np.uint64]]:
    """Of every group with kept rows: its name, how many they are, the domain of the first, and the smallest
    key of all its rows.
    """
    kept = np.flatnonzero(keep)
    leaders, first, sizes = np.unique(group[kept], return_index=True, return_counts=True)
    lowest = np.full(len(group), np.iinfo(np.uint64).max)
    np.minimum.at(lowest, group, keys)
    return leaders, sizes, domain[kept[first]], lowest[leaders]


def apportion(rows: NDArray[np.int64], fraction: float, least: int) -> NDArray[np.int64]:
    """`fraction` of all `rows`, rounded, shared by the strata with the largest remainders; at least `least`
    of two rows or more, unless it is 0.
    """
    total = int(rows.sum())
    wanted = max(least, round(total * fraction)) if fraction > 0 and total > 1 else 0
    exact = rows * (wanted / max(total, 1))
    quotas: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    missing = wanted - int(quotas.sum())
    quotas[np.argsort(quotas - exact, kind="stable")[:missing]] += 1
    return quotas


def _take(
    leaders: NDArray[np.int32], sizes: NDArray[np.intp], left: int, taken: NDArray[np.uint8], which: int
) -> None:
    """Mark groups in order as long as they fit; one too large for what is left stays in training."""
    for leader, size in zip(leaders.tolist(), sizes.tolist(), strict=True):
        if size <= left and not taken[leader]:
            taken[leader] = which
            left -= size
