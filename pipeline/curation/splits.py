"""Which split a row belongs to: whole groups of related rows, every domain in proportion."""

import hashlib

import numpy as np
from numpy.typing import NDArray

SPLITS = ("train", "val", "test")
TRAIN, VAL, TEST = range(3)


def draws(keys: NDArray[np.uint64], purpose: str, seed: int) -> NDArray[np.uint64]:
    """A uniform 64-bit number per key (SplitMix64, Steele, Lea, Flood 2014), other for every purpose and seed."""
    salt = int.from_bytes(hashlib.sha256(f"{purpose}:{seed}".encode()).digest()[:8], "big")
    mixed = keys ^ np.uint64(salt)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def assign_splits(
    group: NDArray[np.int32], domain: NDArray[np.int32], keep: NDArray[np.bool_], keys: NDArray[np.uint64],
    *, seed: int, val_fraction: float, test_fraction: float,
) -> NDArray[np.uint8]:  # fmt: skip
    """The split (`TRAIN`, `VAL` or `TEST`) of every row; of rows that are not kept too, that of their group.

    `group[i]` is the smallest index of a row related to row i; a group is never torn. Of every domain the wanted share of kept
    rows goes to test and to val, as nearly as whole groups allow; a group counts for the domain of its first kept row.
    Groups are taken in the order of a draw from seed and content (the smallest of `keys`, 64 bits of each row's id), test from
    one end and val from the other: a row mostly stays where it is when others come, and test is the same for any `val_fraction`.
    """
    split = np.zeros(len(group), np.uint8)
    sizes = np.bincount(group[keep], minlength=len(group)).astype(np.int32)
    leaders = np.flatnonzero(sizes)
    if not len(leaders):
        return split
    smallest = np.full(len(group), np.iinfo(np.uint64).max)
    np.minimum.at(smallest, group, keys)
    first = np.full(len(group), -1, np.int32)
    kept = np.flatnonzero(keep)[::-1]
    first[group[kept]] = kept  # the last assignment wins: the group's first kept row
    order = leaders[np.argsort(draws(smallest[leaders], "split", seed), kind="stable")]
    stratum = domain[first[order]]
    rows = np.bincount(stratum, weights=sizes[order]).astype(np.int64)
    taken = np.zeros(len(group), np.uint8)
    for which, fraction, walk, least in ((TEST, test_fraction, order, 1), (VAL, val_fraction, order[::-1], 0)):
        quotas = apportion(rows, fraction, least)
        for number in np.flatnonzero(quotas):
            _take(walk[(stratum if walk is order else stratum[::-1]) == number], sizes, int(quotas[number]), taken, which)
    return taken[group]


def apportion(rows: NDArray[np.int64], fraction: float, least: int) -> NDArray[np.int64]:
    """`fraction` of all `rows`, rounded, shared by the strata with the largest remainders; at least `least` of two rows or more, unless it is 0."""
    total = int(rows.sum())
    wanted = max(least, round(total * fraction)) if fraction > 0 and total > 1 else 0
    exact = rows * (wanted / max(total, 1))
    quotas: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    missing = wanted - int(quotas.sum())
    quotas[np.argsort(quotas - exact, kind="stable")[:missing]] += 1
    return quotas


def _take(walk: NDArray[np.int64], sizes: NDArray[np.int32], quota: int, taken: NDArray[np.uint8], which: int) -> None:
    """Mark groups in order as long as they fit; one too large for what is left stays in training."""
    left = quota
    for leader in walk.tolist():
        if left <= 0:
            return
        if not taken[leader] and sizes[leader] <= left:
            taken[leader] = which
            left -= int(sizes[leader])
