"""Which base weights the adapter goes onto, decided from measurements of both merges at the level that ships.

The rule, in this order, at the deciding level and row by row (paired, 95 % intervals of the mean difference):

1. where the task was scored on at least `FEWEST` rows and the interval of the difference leaves out 0, the higher score wins;
2. else, where the interval of the difference in divergence from the trained model leaves out 0 (again on at least
   `FEWEST` rows), the closer one wins;
3. else the 16-bit weights: they are the published ones, and nothing speaks for others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.metrics.intervals import interval

Onto = Literal["w16", "nf4"]
FEWEST = 8  # rows: an interval of fewer says little, that of one row nothing
NAMES: Mapping[Onto, str] = {"w16": "16-bit base", "nf4": "NF4 base"}


@dataclass(frozen=True)
class Measured:
    """One merge at one level: per row the mean divergence from the trained model in nats, the same first choice, the task's points."""

    klds: Sequence[float]
    same_top: float
    points: Sequence[float | None] | None  # a row's None: not measured


def decide(w16: Measured, nf4: Measured, level: str, seed: int) -> tuple[Onto, str]:
    """(winner, the sentence that says why); both were measured on the same rows. `seed` is the bootstrap's."""
    pairs = zip(w16.points or (), nf4.points or (), strict=True)
    better = [100 * (a - b) for a, b in pairs if a is not None and b is not None]
    if len(better) >= FEWEST:
        low, high = interval(better, seed)
        if low > 0 or high < 0:
            onto: Onto = "w16" if low > 0 else "nf4"
            span = f"{_range(low, high, onto)} points, {len(better)} rows"
            return onto, f"At {level} the merge into the {NAMES[onto]} does the task better by {span}"
    closer = [b - a for a, b in zip(w16.klds, nf4.klds, strict=True)]
    low, high = interval(closer, seed)
    if len(closer) >= FEWEST and (low > 0 or high < 0):
        onto = "w16" if low > 0 else "nf4"
        task = "" if not better else ", and the task's scores can't be told apart"
        return onto, (
            f"At {level} the merge into the {NAMES[onto]} is closer to the trained model by {_range(low, high, onto, 4)} nats, "
            f"{len(closer)} rows{task}"
        )
    return "w16", f"At {level} {len(closer)} rows can't tell the two merges apart, so it is the base's own 16-bit weights"


def _range(low: float, high: float, onto: Onto, digits: int = 1) -> str:
    """The interval as seen from the winner: both ends positive."""
    ends = (low, high) if onto == "w16" else (-high, -low)
    return f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"
