"""Which way to ship a level by the measurements: values in, a way and a sentence out."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config.strategies import WAYS, title
from pipeline.core.units import size_in_words
from pipeline.stages.compare.statistics import Difference


@dataclass(frozen=True)
class Measured:
    """A way at a level: its mean score (0 to 1), bytes needed on the way, bytes shipped."""

    score: float
    on_disk: int
    shipped: int


@dataclass(frozen=True)
class Advice:
    """The way to take; `decided`: the measurements say so, else several are as good and disk decides; the sentence that says it."""

    way: str
    decided: bool
    sentence: str


def recommend(
    level: str, ways: Mapping[str, Measured], differences: Mapping[tuple[str, str], Difference], seeds: int
) -> Advice:
    """The way to ship `level`.

    `differences[first, second]` is second less first, for every pair in either order. The best-scoring way is taken if it is measurably better
    than every other; else, of it and those that it isn't measurably better than, the one with the least disk on the way, then the smallest.
    """
    best = max(ways, key=lambda way: (ways[way].score, -list(WAYS).index(way)))
    equals = [way for way in ways if way == best or not between(differences, way, best).measurable]
    chosen = min(equals, key=lambda way: (ways[way].on_disk, ways[way].shipped, list(WAYS).index(way)))
    worse = [way for way in ways if way not in equals]
    decided, remedy = len(equals) == 1, WAYS[chosen].remedy.format(level=level)
    over = f"over {seeds} seeds" if seeds > 1 else "with one seed"
    if decided:
        runner = max(worse, key=lambda way: ways[way].score, default=best)
        found = between(differences, runner, best)
        why = f"{over} it scores {100 * ways[best].score:.1f} points, {found.points:.1f} more than the next way ({found.low:.1f} to {found.high:.1f})"
    else:
        few = f"{len(equals)} of {len(ways)} ways are not measurably below the best one, and of these it needs least disk"
        all_of_them = "no way scores measurably below the best one, so take the one that needs least disk"
        why = f"{over} {few if worse else all_of_them}, {size_in_words(ways[chosen].on_disk)} on the way"
    return Advice(chosen, decided, f"{level}: {title(chosen, level)}: {why}: {remedy}")


def between(differences: Mapping[tuple[str, str], Difference], first: str, second: str) -> Difference:
    """The second less the first, in whichever order they were measured."""
    if (first, second) in differences:
        return differences[first, second]
    found = differences[second, first]
    return Difference(-found.points, -found.high, -found.low, found.p_value)
