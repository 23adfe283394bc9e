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
    perfect: Mapping[tuple[str, str], Difference],
    seeds: int,
) -> Advice:
    """The strategy to ship `level`.

    `differences[first, second]` is second less first in score, `perfect` the same in rows that are all right,
    for every pair in either order. A strategy is out if another one is measurably above it in score, or not
    below it in score and measurably above it in rows that are all right. Of those that stay, those
    about as fast as the fastest, and of these the one with the least disk on the way, then the smallest.
    """
    order = list(STRATEGIES)

    def beats(one: str, other: str) -> bool:
        return above(differences, one, other) or (
            above(perfect, one, other) and not above(differences, other, one)
        )

    worse = [one for one in strategies if any(beats(other, one) for other in strategies if other != one)]
    # of three or more each may be below another
    equals = [one for one in strategies if one not in worse] or list(strategies)
    speed = {one: strategies[one].speed for one in equals}
    fast = [one for one in equals if speed[one] >= AS_FAST * max(speed.values())]
    chosen = min(fast, key=lambda one: (strategies[one].on_disk, strategies[one].shipped, order.index(one)))
    if len(strategies) == 1:
        why = "nothing else was measured"
    elif len(equals) == 1:
        runner = max(worse, key=lambda one: strategies[one].score)
        found, more = between(differences, runner, chosen), between(perfect, runner, chosen)
        score = f"it scores {100 * strategies[chosen].score:.1f} points"
        why = f"{score}, {found.points:.1f} more than the next strategy ({found.low:.1f} to {found.high:.1f})"
        if not found.measurable:
            why = (
                f"{score}, the next strategy {100 * strategies[runner].score:.1f}, and has {more.points:.1f} "
                f"more of 100 rows all right ({more.low:.1f} to {more.high:.1f})"
            )
    else:
        alike = f"{len(equals)} of {len(strategies)} strategies are not" if worse else "no strategy is"
        why = f"{alike} measurably below another one"
        if slow := [speed[one] for one in equals if one not in fast]:
            why += f", adapters cost speed ({min(slow):.2f} to {max(slow):.2f} of the level's)"
        if len(fast) > 1:
            why += ", and it needs least disk"
        why += f", {size_text(strategies[chosen].on_disk)} on the way"
    over, remedy = f"over {seeds} seeds" if seeds > 1 else "with one seed", STRATEGIES[chosen].remedy
    sentence = f"{level}: {title(chosen, level)}: {over} {why}: {remedy.format(level=level)}"
    sentence += forgotten(strategies[chosen].general)
    return Advice(chosen, len(equals) == 1 < len(strategies), sentence)


def above(differences: Mapping[tuple[str, str], Difference], one: str, other: str) -> bool:
    """Whether `one` is measurably above `other`."""
    found = between(differences, other, one)
    return found.measurable and found.points > 0


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
