"""Packing: choose the sequences that share a packed row, so that hardly any of its tokens are empty."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.methods import Method
from pipeline.core.errors import ConfigError
from pipeline.models.packed_rows import rows_apart


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Return the sequence numbers of each packed row of at most `capacity` tokens.

    Each sequence is in one row, whole. Best-fit decreasing over all of them (like TRL's `bfd`, which does it
    for 1,000 at a time; arXiv:2404.10830): the longest first, each into the row that it fills best. Equal
    lengths keep their order, so equal input gives equal rows. Raises `AssertionError` if a sequence is longer
    than a row or empty, because nothing is cut here.
    """
    rows: list[list[int]] = []
    by_space = defaultdict[int, list[int]](list)  # tokens left: the rows that have this many left
    spaces: list[int] = []  # ascending keys of `by_space`; the smallest that is large enough is the best fit
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        length = lengths[number]
        _check_fits(number, length, capacity)
        place = bisect_left(spaces, length)
        if place < len(spaces):
            space = spaces[place]
            row = by_space[space].pop()
            if not by_space[space]:
                spaces.pop(place)
        else:
            space = capacity
            row = len(rows)
            rows.append([])
        rows[row].append(number)
        if space > length:
            if not by_space[space - length]:
                insort(spaces, space - length)
            by_space[space - length].append(row)
    return rows


def in_order(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Return the sequence numbers of each packed row of at most `capacity` tokens, in the given order. A row
    ends before the first sequence that doesn't fit any more.

    Raises `AssertionError` as `best_fit` does.
    """
    rows: list[list[int]] = []
    space = 0
    for number, length in enumerate(lengths):
        _check_fits(number, length, capacity)
        if length > space:
            rows.append([])
            space = capacity
        rows[-1].append(number)
        space -= length
    return rows


def _check_fits(number: int, length: int, capacity: int) -> None:
    if not 0 < length <= capacity:
        raise AssertionError(f"sequence {number} has {length} tokens, a packed row takes 1 to {capacity}")


def need_rows_apart(base: Path, method: Method) -> None:
    """Raise `ConfigError` if the base can't compute several answers as one row, as `method` does, or if that
    can't be measured.
    """
    apart = rows_apart(base)
    if apart.reason:
        raise ConfigError(
            "Q-PREPROCESS-002" if apart.difference is None else "Q-PREPROCESS-003",
            f"train.method is {method}, which computes several answers as one row, but {apart.reason}: "
            "choose another base, or train.method sft",
        )
