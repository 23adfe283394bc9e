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
    """One merge at one level: per row mean divergence (nats), same first choices, the task's points."""

    klds: Sequence[float]
    same_top: float
    points: Sequence[float | None] | None  # a row's None: not measured


def decide(sixteen_bit: Measured, nf4: Measured, level: str, seed: int) -> tuple[MergeBase, str]:
    """(winner, a sentence why); both were measured on the same rows. `seed` is the bootstrap's."""
    pairs = zip(sixteen_bit.points or (), nf4.points or (), strict=True)
    better = [100 * (a - b) for a, b in pairs if a is not None and b is not None]
    closer = [b - a for a, b in zip(sixteen_bit.klds, nf4.klds, strict=True)]
    task = ", and the task's scores can't be told apart" if better else ""
    measures = (
        (better, "does the task better by {:.1f} to {:.1f} points, {} rows"),
        (closer, f"is closer to the trained model by {{:.4f}} to {{:.4f}} nats, {{}} rows{task}"),
    )
    for differences, verdict in measures:
        low, high = interval(differences, seed) if len(differences) >= FEWEST else (0.0, 0.0)
        if low > 0 or high < 0:
            merge_base: MergeBase = "16-bit" if low > 0 else "nf4"
            ends = (low, high) if low > 0 else (-high, -low)  # as seen from the winner: both positive
            what = verdict.format(*ends, len(differences))
            return merge_base, f"At {level} the merge into the {NAMES[merge_base]} {what}"
    return (
        "16-bit",
        f"At {level} {len(closer)} rows can't tell the two merges apart, so it is the base's own 16-bit "
        "weights",
    )
