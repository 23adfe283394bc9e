"""General ability in the summary: how many questions of common knowledge a strategy's models answer right,
and how many more or fewer than the untuned base.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pipeline.core.errors import DataError
from pipeline.stages.compare.statistics import Difference, Scores, difference, mean_of

# of one measurement: "right" has 1 or 0 for each question, "sha256" is that of the questions; None: not asked
General = Mapping[str, Any] | None


def general_score(measured: Sequence[General]) -> dict[str, Any] | None:
    """The share of questions right over the seeds with its 95 % interval; None if they were not asked."""
    if (right := _right(measured)) is None:
        return None
    score = mean_of(right)
    return {"rows": right.shape[1], "score": score.value, "low": score.low, "high": score.high}


def general_change(untuned: Sequence[General], measured: Sequence[General], seed: int) -> Difference | None:
    """What the models answer right more than the untuned base, in points of 100, on the same questions;
    `seed` draws the test's swaps. None if one of them was not asked.

    Raises `DataError` if they were asked other questions.
    """
    before, after = _right(untuned), _right(measured)
    if before is None or after is None:
        return None
    if len({one["sha256"] for one in (*untuned, *measured) if one}) > 1:
        raise DataError(
            "Q-COMPARE-009",
            "the measurements answered different general questions: run `snakemake --forcerun "
            "compare_unquantized compare_measure compare_measure_level compare_measure_scales "
            "compare_measure_distilled`, which asks all of them again",
        )
    return difference(before, after, seed)


def change_row(change: Difference | None) -> dict[str, Any] | None:
    """A change as JSON."""
    return None if change is None else {**asdict(change), "measurable": change.measurable}


def _right(measured: Sequence[General]) -> Scores | None:
    """(seeds, questions), 1 or 0."""
    found = [one["right"] for one in measured if one]
    return np.array(found, dtype=np.float64) if found and len(found) == len(measured) else None
