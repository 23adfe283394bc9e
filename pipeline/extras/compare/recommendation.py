"""Recommendation of the strategy to ship at a level, by the measurements: values in, a strategy and a
sentence out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config.strategies import STRATEGIES, title
from pipeline.core.units import size_text
from pipeline.extras.compare.statistics import Difference

AS_FAST = 0.95  # share of the fastest strategy's speed


@dataclass(frozen=True)
class Measured:
    """Figures of a strategy at a level: its mean score (0 to 1), bytes on the disk while it is made, bytes
    shipped, general ability less the untuned base's (None if not measured), and the speed of generation as a
    share of that without the adapter (1 if none ships).
    """

    score: float
    on_disk: int
    shipped: int
    general: Difference | None = None
    speed: float = 1.0


@dataclass(frozen=True)
class Advice:
    """The strategy to ship, and the sentence that recommends it. `decided` is True if the scores decide.
    Otherwise more than one strategy is as good, and speed, then disk space, decides.
    """

    recommended: str
    decided: bool
    sentence: str


def recommend(
    level: str,
    strategies: Mapping[str, Measured],
    differences: Mapping[tuple[str, str], Difference],
    perfect: Mapping[tuple[str, str], Difference],
    seeds: int,
) -> Advice:
    """Return the strategy to ship `level`.

    `differences[first, second]` is second less first in score, `perfect` the same in rows that are all right,
    for every pair in either order. A strategy is out if another one is measurably above it in score, or not
    below it in score and measurably above it in rows that are all right. Of the others, those about as fast
    as the fastest remain. Of these the one with the least disk space while it is made is chosen, then the
    smallest.
    """
    order = list(STRATEGIES)

    def beats(strategy: str, other: str) -> bool:
        return above(differences, strategy, other) or (
            above(perfect, strategy, other) and not above(differences, other, strategy)
        )

    worse = [
        strategy
        for strategy in strategies
        if any(beats(other, strategy) for other in strategies if other != strategy)
    ]
    # among three or more, each may be below another
    equals = [strategy for strategy in strategies if strategy not in worse] or list(strategies)
    speed = {strategy: strategies[strategy].speed for strategy in equals}
    fast = [strategy for strategy in equals if speed[strategy] >= AS_FAST * max(speed.values())]
    chosen = min(
        fast,
        key=lambda strategy: (
            strategies[strategy].on_disk,
            strategies[strategy].shipped,
            order.index(strategy),
        ),
    )
    if len(strategies) == 1:
        why = "nothing else was measured"
    elif len(equals) == 1:
        runner = max(worse, key=lambda strategy: strategies[strategy].score)
        difference, more = between(differences, runner, chosen), between(perfect, runner, chosen)
        score = f"it scores {100 * strategies[chosen].score:.1f} points"
        interval = f"{difference.low:.1f} to {difference.high:.1f}"
        why = f"{score}, {difference.points:.1f} more than the next strategy ({interval})"
        if not difference.measurable:
            why = (
                f"{score}, the next strategy {100 * strategies[runner].score:.1f}, and has {more.points:.1f} "
                f"more of 100 rows all right ({more.low:.1f} to {more.high:.1f})"
            )
    else:
        alike = f"{len(equals)} of {len(strategies)} strategies are not" if worse else "no strategy is"
        why = f"{alike} measurably below another one"
        slow = [speed[strategy] for strategy in equals if strategy not in fast]
        if slow:
            why += f", adapters cost speed ({min(slow):.2f} to {max(slow):.2f} of the level's)"
        if len(fast) > 1:
            why += ", and it needs least disk"
        why += f", {size_text(strategies[chosen].on_disk)} on the way"
    over = f"over {seeds} seeds" if seeds > 1 else "with one seed"
    remedy = STRATEGIES[chosen].remedy
    sentence = f"{level}: {title(chosen, level)}: {over} {why}: {remedy.format(level=level)}"
    sentence += forgotten(strategies[chosen].general)
    return Advice(chosen, len(equals) == 1 < len(strategies), sentence)


def above(differences: Mapping[tuple[str, str], Difference], strategy: str, other: str) -> bool:
    """Return True if `strategy` is measurably above `other`."""
    difference = between(differences, other, strategy)
    return difference.measurable and difference.points > 0


def forgotten(change: Difference | None) -> str:
    """Return the end of a sentence if general ability is measurably below the untuned base's; "" if not."""
    if change is None or not change.measurable or change.points > 0:
        return ""
    return (
        f". Beware: it answers {-change.points:.1f} of 100 general questions fewer than the untuned base "
        f"({-change.high:.1f} to {-change.low:.1f})"
    )


def between(differences: Mapping[tuple[str, str], Difference], first: str, second: str) -> Difference:
    """Return the second less the first, in whichever order they were measured."""
    if (first, second) in differences:
        return differences[first, second]
    difference = differences[second, first]
    return Difference(-difference.points, -difference.high, -difference.low, difference.p_value)
