"""Confidence in the strategies' scores and their differences, over held-out rows and over seeds of training
(`half_width`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.core.errors import DataError
from pipeline.metrics.statistics import CHANCE, compare_scores, half_width

Scores = NDArray[np.float64]  # (seeds, rows), 0 to 1
# Answers of one measurement: "right" has 1 or 0 for each question, "sha256" is that of the questions. It is
# None if no question was asked.
General = Mapping[str, Any] | None


class Mean(NamedTuple):
    """Mean over seeds and rows with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A strategy's mean score less another's, in points of 100, with its 95 % interval over seeds and rows,
    and p over rows.

    `p_value` is two-sided, from the paired permutation test on each row's mean over the seeds
    (`pipeline.metrics.statistics`).
    """

    points: float
    low: float
    high: float
    p_value: float

    @property
    def measurable(self) -> bool:
        """True if the difference is more than chance by both the interval, which includes the seeds, and the
        test.
        """
        return (self.low > 0 or self.high < 0) and self.p_value < CHANCE

    def record(self) -> dict[str, Any]:
        """Return the difference as JSON."""
        return {**asdict(self), "measurable": self.measurable}


def mean_of(scores: Scores) -> Mean:
    """Return the mean of `scores` (seeds, rows) with its interval, which is 0 to 1 for a single score."""
    value = float(scores.mean())
    half = half_width(scores) if scores.size > 1 else 1.0
    return Mean(value, max(value - half, 0.0), min(value + half, 1.0))


def difference(first: Scores, second: Scores) -> Difference:
    """Return `second` less `first`, both (seeds, rows) with the same seeds and rows.

    Raises `ValueError` if their shapes differ or they are empty.
    """
    if first.shape != second.shape or not first.size:
        raise ValueError(
            f"scores of {first.shape} and {second.shape} (seeds, rows): the same of both are wanted, one at "
            "least"
        )
    points = 100 * (second - first)
    value = float(points.mean())
    half = half_width(points) if points.size > 1 else 200.0
    p_value = compare_scores(first.mean(axis=0).tolist(), second.mean(axis=0).tolist()).p_value
    return Difference(value, max(value - half, -100.0), min(value + half, 100.0), p_value)


def general_score(measured: Sequence[General]) -> dict[str, Any] | None:
    """Return the share of right answers over the seeds with its 95 % interval; None if no
    question was asked.
    """
    right = _right(measured)
    if right is None:
        return None
    score, low, high = mean_of(right)
    return {"rows": right.shape[1], "score": score, "low": low, "high": high}


def general_change(untuned: Sequence[General], measured: Sequence[General]) -> Difference | None:
    """Return how many more questions the models answer right than the untuned base, in points of 100. None if
    one of them was not asked.

    Raises `DataError` if they were asked different questions.
    """
    before = _right(untuned)
    after = _right(measured)
    if before is None or after is None:
        return None
    if len({general["sha256"] for general in (*untuned, *measured) if general}) > 1:
        raise DataError(
            "Q-COMPARE-009",
            "the measurements answered different general questions: run `snakemake --forcerun "
            "compare_unquantized compare_measure`, which asks all of them again",
        )
    return difference(before, after)


def _right(measured: Sequence[General]) -> Scores | None:
    """Return an array (seeds, questions) of 1 or 0; None if a measurement is missing."""
    right = [general["right"] for general in measured if general]
    return np.array(right, dtype=np.float64) if right and len(right) == len(measured) else None
