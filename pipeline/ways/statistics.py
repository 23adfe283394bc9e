"""How sure the ways' scores and their differences are, over held-out rows and over seeds of training.

Rows and seeds are crossed: every seed's model answers the same rows, and a hard row is hard for all. So both are drawn with replacement, each on
its own, and a drawn row counts for all drawn seeds (the pigeonhole bootstrap: Owen, "The pigeonhole bootstrap", Annals of Applied Statistics
2007). A bootstrap of S seeds has (S − 1)/S of their variance (Davison and Hinkley, "Bootstrap methods and their application", 1997, 2.3), which is
half for two: the seeds' means are spread by √(S/(S − 1)) first. What is peculiar to a seed on a row is counted up to three times (Owen's theorem),
so intervals err on the wide side; but with two or three seeds what seeds can do is hardly known, and with one it is not in the interval at all.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.scoring.intervals import RESAMPLES
from pipeline.scoring.paired import compare_scores
from pipeline.ways.names import CHANCE

Scores = NDArray[np.float64]  # (seeds, rows), 0 to 1


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and rows with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A way's mean score less another's, in points of 100: 95 % interval over seeds and rows, p over rows.

    `p_value` is two-sided, of the paired permutation test on each row's mean over the seeds (`pipeline.scoring.paired`).
    """

    points: float
    low: float
    high: float
    p_value: float

    @property
    def measurable(self) -> bool:
        """Whether it is more than chance by both: the interval, which knows of the seeds, and the test."""
        return (self.low > 0 or self.high < 0) and self.p_value < CHANCE


def mean_of(scores: Scores, seed: int) -> Mean:
    """The mean of `scores` (seeds, rows) with its interval; of a single score, which says nothing about others, 0 to 1."""
    if scores.size == 1:
        return Mean(float(scores[0, 0]), 0.0, 1.0)
    low, high = np.percentile(resampled(scores, seed), [2.5, 97.5])
    return Mean(float(scores.mean()), float(max(low, 0.0)), float(min(high, 1.0)))


def difference(first: Scores, second: Scores, seed: int) -> Difference:
    """`second` less `first`, both (seeds, rows) of the same seeds and rows. Raises `ValueError` where they are not of one shape."""
    if first.shape != second.shape or not first.size:
        raise ValueError(f"scores of {first.shape} and {second.shape} (seeds, rows): the same of both are wanted, one at least")
    points = 100 * (second - first)
    low, high = np.percentile(resampled(points, seed), [2.5, 97.5]) if points.size > 1 else (-100.0, 100.0)
    p_value = compare_scores(first.mean(axis=0).tolist(), second.mean(axis=0).tolist(), seed).p_value
    return Difference(float(points.mean()), float(low), float(high), p_value)


def resampled(values: Scores, seed: int) -> NDArray[np.float64]:
    """`RESAMPLES` means of as many seeds and rows as there are, both drawn with replacement; the same draw for the same `seed` and shape."""
    seeds, rows = values.shape
    random = np.random.default_rng(seed)
    if seeds > 1:
        means = values.mean(axis=1, keepdims=True)
        values = values + (np.sqrt(seeds / (seeds - 1)) - 1) * (means - means.mean())
    picked_rows = random.multinomial(rows, np.full(rows, 1 / rows), size=RESAMPLES)
    picked_seeds = random.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES)
    drawn: NDArray[np.float64] = ((picked_seeds @ values) * picked_rows).sum(axis=1) / (seeds * rows)
    return drawn
