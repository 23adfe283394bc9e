"""Confidence intervals of a mean, over rows by the bootstrap (Efron 1979) with a fixed seed and over rows and
seeds of training by Student's t; and comparison of two models row by row, so that what makes a row hard for
both cancels out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.chat.selection import SEED

RESAMPLES = 2000
CELLS = 1 << 22  # picks in memory at a time, so that 10,000 rows take 64 MB and not 320
CHANCE = 0.05  # A difference may be chance unless its p is below it.
SWAPS = 5000  # number of the 2ⁿ ways to swap that are tried; all of them up to 12 rows


def interval(points: Sequence[float], seed: int = SEED) -> tuple[float, float]:
    """Return the 95 % interval of the mean by percentile bootstrap over rows.

    `scipy.stats.bootstrap(method="percentile")` gives the same except for its random numbers, takes twice as
    long for 64 rows (3.7 ms) and seconds to import. Its BCa, which corrects for skewness, has no interval if
    every row scores the same, as a perfect model's do.
    """
    low, high = np.percentile(resampled_means(points, seed), [2.5, 97.5])
    return float(low), float(high)


def resampled_means(points: Sequence[float], seed: int = SEED) -> NDArray[np.float64]:
    """Return the means of `RESAMPLES` draws of as many rows as there are, with replacement."""
    values = np.array(points, dtype=np.float64)
    random = np.random.default_rng(seed)
    together = max(1, CELLS // len(values))
    sizes = [min(together, RESAMPLES - start) for start in range(0, RESAMPLES, together)]
    return np.concatenate(
        [values[random.integers(0, len(values), size=(size, len(values)))].mean(axis=1) for size in sizes]
    )


def half_width(values: NDArray[np.float64]) -> float:
    """Return half of the 95 % interval of the mean of at least two `values`, an array (seeds, rows).

    Rows and seeds are crossed: every seed's model answers the same rows, and a hard row is hard for all.
    The variance of the mean is then that of the rows' means plus that of the seeds' means (Clark, "The
    language-as-fixed-effect fallacy", 1973). The effect of a seed on a particular row is in both and is
    not subtracted again, so intervals are rather too wide. Student's t has the degrees of freedom of such
    a sum (Welch-Satterthwaite: Satterthwaite, "An approximate distribution of estimates of variance
    components", 1946). Three seeds tell little of their spread, and if that spread dominates, the
    interval is as wide as three seeds require. In a thousand simulations, 95 % intervals of three seeds
    and 200 rows contained the truth 92 to 98 times in 100, of two seeds 87 to 98. With one seed, the
    effect of seeds is not in the interval at all.
    """
    from scipy.stats import t

    # Variance of a mean and its degrees of freedom, for the rows' means and the seeds' means. A single row or
    # seed has no variance.
    parts = [
        (float(means.var(ddof=1)) / means.size, means.size - 1)
        for means in (values.mean(axis=0), values.mean(axis=1))
        if means.size > 1
    ]
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return 0.0
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    return float(t.ppf(0.975, freedom)) * float(variance**0.5)


@dataclass(frozen=True)
class Difference:
    """Second mean score minus first, in points of 100, its 95 % interval and two-sided p of no difference."""

    points: float
    low: float
    high: float
    p_value: float
    method: Literal["McNemar, exact", "paired permutation"]


def compare_scores(first: Sequence[float], second: Sequence[float], seed: int = SEED) -> Difference:
    """Compare the scores (0 to 1) of two models on the same rows, in the same order.

    The interval is the paired percentile bootstrap's; for a single row, which tells nothing about others, it
    is -100 to 100. If every score is 0 or 1, p is McNemar's exact test (1947; a binomial test on the rows
    where one is right and the other wrong). Otherwise it is that of the permutation test, which swaps each
    row's two scores or leaves them (Fisher 1935; `scipy.stats.permutation_test`, "samples"): exact up to 12
    rows, and never below 2 / 2ⁿ of n rows, where a bootstrap's p would be certain of two. Raises `ValueError`
    for lists that are empty or not of one length.
    """
    if not first or len(first) != len(second):
        raise ValueError(
            f"{len(first)} scores and {len(second)}: the same rows of both are wanted, one at least"
        )
    return _compared(tuple(first), tuple(second), seed)


# A report compares the same models for its verdicts, its choice and its tables.
@lru_cache(maxsize=256)
def _compared(first: tuple[float, ...], second: tuple[float, ...], seed: int) -> Difference:
    differences = 100 * (np.array(second, dtype=np.float64) - np.array(first, dtype=np.float64))
    low, high = interval(differences.tolist(), seed) if len(first) > 1 else (-100.0, 100.0)
    if {*first, *second} <= {0.0, 1.0}:
        p_value = _mcnemar(int((differences > 0).sum()), int((differences < 0).sum()))
        method = "McNemar, exact"
    else:
        p_value = _swapped(differences, seed)
        method = "paired permutation"
    return Difference(float(differences.mean()), float(low), float(high), float(p_value), method)  # type: ignore[arg-type]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values of more than one test, raised so that a false alarm among all of them stays as rare
    as in one.

    Holm, "A simple sequentially rejective multiple test procedure", 1979: the smallest counts as many times
    as there are tests, the next once less, and none becomes smaller than the one before it.
    """
    adjusted = [1.0] * len(p_values)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted


def _swapped(differences: NDArray[np.float64], seed: int) -> float:
    """Return the two-sided p of the mean difference if each row's sign is a fair coin's."""
    from scipy.stats import permutation_test

    if len(differences) == 1 or not differences.any():
        return 1.0
    permuted = permutation_test(
        (differences,),
        lambda values, axis: values.mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=SWAPS,
        batch=max(1, CELLS // len(differences)),
        rng=np.random.default_rng(seed),
    )
    return float(permuted.pvalue)


def _mcnemar(won: int, lost: int) -> float:
    """Return the two-sided p of `won` and `lost` rows under a fair coin; 1 if no row differs."""
    if not won + lost:
        return 1.0
    from scipy.stats import binomtest  # type: ignore[import-untyped]

    return float(binomtest(won, won + lost).pvalue)
