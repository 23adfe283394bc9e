"""Which strategy to ship a level by the measurements: values in, a strategy and a sentence out."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config.strategies import STRATEGIES, title
from pipeline.core.units import size_text
from pipeline.stages.compare.statistics import Difference


@dataclass(frozen=True)
class Measured:
    """A strategy at a level: its mean score (0 to 1), bytes needed on the way, bytes shipped."""

    score: float
    on_disk: int
    shipped: int


@dataclass(frozen=True)
class Advice:
    """The strategy to take; `decided`: the measurements say so, else several are as good and disk decides;
    the sentence that says it.
    """

    strategy: str
    decided: bool
    sentence: str


def recommend(
    level: str,
    strategies: Mapping[str, Measured],
    differences: Mapping[tuple[str, str], Difference],
    seeds: int,
) -> Advice:
    """The strategy to ship `level`.

    `differences[first, second]` is second less first, for every pair in either order. The best-scoring
    strategy is taken if it is measurably better than every other; else, of it and those that it isn't
    measurably better than, the one with the least disk on the way, then the smallest.
    """
    best = max(
        strategies, key=lambda strategy: (strategies[strategy].score, -list(STRATEGIES).index(strategy))
    )
    equals = [
        strategy
        for strategy in strategies
        if strategy == best or not between(differences, strategy, best).measurable
    ]
    chosen = min(
        equals,
        key=lambda strategy: (
            strategies[strategy].on_disk,
            strategies[strategy].shipped,
            list(STRATEGIES).index(strategy),
        ),
    )
    worse = [strategy for strategy in strategies if strategy not in equals]
    decided, remedy = len(equals) == 1, STRATEGIES[chosen].remedy.format(level=level)
    over = f"over {seeds} seeds" if seeds > 1 else "with one seed"
    if decided:
        runner = max(worse, key=lambda strategy: strategies[strategy].score, default=best)
        found = between(differences, runner, best)
        why = (
            f"{over} it scores {100 * strategies[best].score:.1f} points, {found.points:.1f} more than the "
            f"next strategy ({found.low:.1f} to {found.high:.1f})"
        )
    else:
        few = (
            f"{len(equals)} of {len(strategies)} strategies are not measurably below the best one, and "
            "of these it needs least disk"
        )
        all_of_them = (
            "no strategy scores measurably below the best one, so take the one that needs least disk"
        )
        why = f"{over} {few if worse else all_of_them}, {size_text(strategies[chosen].on_disk)} on the way"
    return Advice(chosen, decided, f"{level}: {title(chosen, level)}: {why}: {remedy}")


def between(differences: Mapping[tuple[str, str], Difference], first: str, second: str) -> Difference:
    """The second less the first, in whichever order they were measured."""
    if (first, second) in differences:
        return differences[first, second]
    found = differences[second, first]
    return Difference(-found.points, -found.high, -found.low, found.p_value)
