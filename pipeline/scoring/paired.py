"""Do two models differ? Compared row by row, so that what makes a row hard for both cancels out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.scoring.intervals import RESAMPLES, resampled_means


@dataclass(frozen=True)
class Difference:
    """The second's mean score less the first's, in points of 100, with its 95 % interval and the two-sided p of no difference."""

    points: float
    low: float
    high: float
    p_value: float
    method: Literal["McNemar, exact", "paired bootstrap"]


def compare_scores(first: Sequence[float], second: Sequence[float], seed: int) -> Difference:
    """Compare the scores (0 to 1) of two models on the same rows, in the same order.

    The interval is the paired percentile bootstrap's. p is McNemar's exact test (1947; a binomial test on the rows where one is right
    and the other wrong) where every score is 0 or 1, else twice the smaller share of resampled means on either side of 0, counted with
    the sample itself (Davison and Hinkley 1997, eq. 4.11). Raises `ValueError` for lists that are empty or not of one length.
    """
    if not first or len(first) != len(second):
        raise ValueError(f"{len(first)} scores and {len(second)}: the same rows of both are wanted, one at least")
    differences = 100 * (np.array(second, dtype=np.float64) - np.array(first, dtype=np.float64))
    means = resampled_means(differences.tolist(), seed)
    low, high = np.percentile(means, [2.5, 97.5])
    if {*first, *second} <= {0.0, 1.0}:
        p_value, method = _mcnemar(int((differences > 0).sum()), int((differences < 0).sum())), "McNemar, exact"
    else:
        p_value, method = min(1.0, 2 * (1 + min((means <= 0).sum(), (means >= 0).sum())) / (1 + RESAMPLES)), "paired bootstrap"
    return Difference(float(differences.mean()), float(low), float(high), float(p_value), method)  # type: ignore[arg-type]


def _mcnemar(won: int, lost: int) -> float:
    """Two-sided p of `won` and `lost` rows under a fair coin; 1 where no row tells the two apart."""
    if not won + lost:
        return 1.0
    from scipy.stats import binomtest  # type: ignore[import-untyped]

    return float(binomtest(won, won + lost).pvalue)
