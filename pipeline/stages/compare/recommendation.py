"""Which strategy to ship a level by the measurements: values in, a strategy and a sentence out."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config.strategies import STRATEGIES, title
from pipeline.core.units import size_text
from pipeline.stages.compare.statistics import Difference

AS_FAST = 0.95  # of the fastest one's speed


@dataclass(frozen=True)
class Measured:
    """A strategy at a level: its mean score (0 to 1), bytes needed on the way, bytes shipped, general ability
    less the untuned base's, None if that was not measured, and the speed of generation as a part of that
    without the adapter (1 if none ships).
    """

    score: float
    on_disk: int
    shipped: int
    general: Difference | None = None
    speed: float = 1.0


@dataclass(frozen=True)
class Advice:
    """The strategy to take; `decided`: the scores say so, else several are as good and speed, then disk,
    decides; the sentence that says it.
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
    measurably better than, those about as fast as the fastest, and of these the one with the least disk on
    the way, then the smallest.
    """
    order = list(STRATEGIES)
    best = max(strategies, key=lambda one: (strategies[one].score, -order.index(one)))
    worse = [one for one in strategies if one != best and between(differences, one, best).measurable]
    equals = [one for one in strategies if one not in worse]
    fastest = max(strategies[one].speed for one in equals)
    fast = [one for one in equals if strategies[one].speed >= AS_FAST * fastest]
    chosen = min(fast, key=lambda one: (strategies[one].on_disk, strategies[one].shipped, order.index(one)))
    if len(equals) == 1:
        runner = max(worse, key=lambda one: strategies[one].score, default=best)
        found = between(differences, runner, best)
        why = (
            f"it scores {100 * strategies[best].score:.1f} points, {found.points:.1f} more than the next "
            f"strategy ({found.low:.1f} to {found.high:.1f})"
        )
    else:
        alike = f"{len(equals)} of {len(strategies)} strategies are not" if worse else "no strategy is"
        group = ("these" if worse else "all") if fast == equals else "the fastest"
        why = (
            f"{alike} measurably below the best one; of {group} it needs least disk, "
            f"{size_text(strategies[chosen].on_disk)} on the way"
        )
    over, remedy = f"over {seeds} seeds" if seeds > 1 else "with one seed", STRATEGIES[chosen].remedy
    sentence = f"{level}: {title(chosen, level)}: {over} {why}: {remedy.format(level=level)}"
    sentence += forgotten(strategies[chosen].general)
    return Advice(chosen, len(equals) == 1, sentence)


def forgotten(change: Difference | None) -> str:
    """What a sentence adds if general ability is measurably below the untuned base's; "" if not."""
    if change is None or not change.measurable or change.points > 0:
        return ""
    return (
        f". Beware: it answers {-change.points:.1f} of 100 general questions fewer than the untuned base "
        f"({-change.high:.1f} to {-change.low:.1f})"
    )


def between(differences: Mapping[tuple[str, str], Difference], first: str, second: str) -> Difference:
    """The second less the first, in whichever order they were measured."""
    if (first, second) in differences:
        return differences[first, second]
    found = differences[second, first]
    return Difference(-found.points, -found.high, -found.low, found.p_value)
