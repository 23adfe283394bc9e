"""Models as points of a plot, each on its interval, and their names, each where there is room for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.pages.plots import CARD, reach

LETTER, HEIGHT = 5.9, 11.0  # a label's letter and line, in points
Box = tuple[float, float, float, float]  # left, bottom, right, top


@dataclass(frozen=True)
class Place:
    """A model in a plot: its size, and its value with the ends of its 95 % interval."""

    model: str
    size: float
    value: float
    low: float
    high: float


def put_point(axes: Any, place: Place, color: str, *, hollow: bool) -> None:
    """Draw a model's value on its interval."""
    axes.errorbar(
        [place.size],
        [place.value],
        yerr=reach(place.value, (place.low, place.high)),
        fmt="o",
        color=color,
        markersize=7,
        markerfacecolor=CARD if hollow else color,
        markeredgewidth=1.6,
        capsize=3.5,
        elinewidth=1.5,
    )


def put_labels(axes: Any, places: Sequence[Place], colors: Mapping[str, str], chosen: str | None) -> None:
    """Write each model's name, in its color, where it covers no interval and no other name; the `chosen` one
    picks its place first and is bold. The figure must have been laid out.
    """
    points = {
        one.model: axes.transData.transform(
            [(one.size, one.value), (one.size, one.low), (one.size, one.high)]
        )
        for one in places
    }
    taken: list[Box] = [(at[0][0] - 5, at[1][1] - 5, at[0][0] + 5, at[2][1] + 5) for at in points.values()]
    frame = axes.get_window_extent()
    for one in sorted(places, key=lambda place: (place.model != chosen, place.size, -place.value)):
        (x, y), (_, low), (_, high) = points[one.model]
        half = len(one.model) * LETTER / 2
        spots = [(x, high + 11), (x, low - 11), (x + 9 + half, y), (x - 9 - half, y)]
        spots += [spot for step in range(24, 64, 13) for spot in ((x, high + step), (x, low - step))]
        spots += [(x + side * (9 + half), y + step) for step in range(-104, 105, 13) for side in (1, -1)]
        # a spot costs as much as what it covers; among equals the first
        across, up = min(
            spots,
            key=lambda spot: _covered(
                (spot[0] - half, spot[1] - HEIGHT / 2, spot[0] + half, spot[1] + HEIGHT / 2), taken, frame
            ),
        )
        taken.append((across - half, up - HEIGHT / 2, across + half, up + HEIGHT / 2))
        axes.annotate(
            one.model,
            (one.size, one.value),
            xytext=(across - x, up - y),
            textcoords="offset points",
            ha="center",
            va="center",
            color=colors[one.model],
            annotation_clip=False,
            parse_math=False,  # a name is no formula
            fontweight="bold" if one.model == chosen else "normal",
        )


def _covered(box: Box, taken: Sequence[Box], frame: Any) -> float:
    """The area in square points that a label at `box` would share with others; outside the frame counts as
    covered.
    """
    shared = sum(
        max(0.0, min(box[2], one[2]) - max(box[0], one[0]))
        * max(0.0, min(box[3], one[3]) - max(box[1], one[1]))
        for one in taken
    )
    inside = max(0.0, min(box[2], frame.x1) - max(box[0], frame.x0)) * max(
        0.0, min(box[3], frame.y1 + 10) - max(box[1], frame.y0 - 2)
    )
    return float(round(shared + (box[2] - box[0]) * (box[3] - box[1]) - inside, 3))
