"""Which base weights the adapter is merged into, decided from measurements of both merges at the level that
ships.

The rule, in this order, at the deciding level and row by row (paired, 95 % intervals of the mean difference):

1. where the task was scored on at least `FEWEST` rows and the interval of the difference leaves out 0, the
   higher score wins;
2. else, where the interval of the difference in divergence from the trained model leaves out 0 (again on at
   least `FEWEST` rows), the closer one wins;
3. else the 16-bit weights: they are the published ones, and nothing speaks for others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.metrics.intervals import interval

MergeBase = Literal["16-bit", "nf4"]
FEWEST = 8  # rows: an interval of fewer says little, that of one row nothing
NAMES: Mapping[MergeBase, str] = {"16-bit": "16-bit base", "nf4": "NF4 base"}


@dataclass(frozen=True)
class Measured:
    """One merge at one level: per row the mean divergence from the trained model in nats, the same first
    choice, the task's points.
    """

    klds: Sequence[float]
    same_top: float
    points: Sequence[float | None] | None  # a row's None: not measured


def decide(sixteen_bit: Measured, nf4: Measured, level: str, seed: int) -> tuple[MergeBase, str]:
    """(winner, the sentence that says why); both were measured on the same rows. `seed` is the
    bootstrap's.
    """
    pairs = zip(sixteen_bit.points or (), nf4.points or (), strict=True)
    better = [100 * (a - b) for a, b in pairs if a is not None and b is not None]
    if len(better) >= FEWEST:
        low, high = interval(better, seed)
        if low > 0 or high < 0:
            merge_base: MergeBase = "16-bit" if low > 0 else "nf4"
            span = f"{_range(low, high, merge_base)} points, {len(better)} rows"
            return (
                merge_base,
                f"At {level} the merge into the {NAMES[merge_base]} does the task better by {span}",
            )
    closer = [b - a for a, b in zip(sixteen_bit.klds, nf4.klds, strict=True)]
    low, high = interval(closer, seed)
    if len(closer) >= FEWEST and (low > 0 or high < 0):
        merge_base = "16-bit" if low > 0 else "nf4"
        task = "" if not better else ", and the task's scores can't be told apart"
        return merge_base, (
            f"At {level} the merge into the {NAMES[merge_base]} is closer to the trained model by "
            f"{_range(low, high, merge_base, 4)} nats, {len(closer)} rows{task}"
        )
    return (
        "16-bit",
        f"At {level} {len(closer)} rows can't tell the two merges apart, so it is the base's own 16-bit "
        "weights",
    )


def _range(low: float, high: float, merge_base: MergeBase, digits: int = 1) -> str:
    """The interval as seen from the winner: both ends positive."""
    ends = (low, high) if merge_base == "16-bit" else (-high, -low)
    return f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"
