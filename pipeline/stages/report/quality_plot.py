"""Quality against file size as inline SVG: tuned levels, levels of the untuned base, and the Pareto front of
them all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config.sections import served_of
from pipeline.gate.recommend import is_base
from pipeline.gate.task_scores import task_score
from pipeline.pages.plots import ACCENT, CARD, INK, MUTED, panels_of, svg_of

INCHES = (7.6, 4.1)
BREAK = 0.4  # of the entire range: a gap as large breaks the scale
LETTER, HEIGHT = 5.9, 11.0  # a label's letter and line, in points
Box = tuple[float, float, float, float]  # left, bottom, right, top


@dataclass(frozen=True)
class Place:
    """A model in the plot: its file size, and its value with the ends of its 95 % interval."""

    model: str
    size: float
    value: float
    low: float
    high: float


def quality_plot(evaluations: Mapping[str, Mapping[str, Any]], recommended: str | None) -> str:
    """Task score in points with its 95 % interval (same top token in % where not every tuned model was
    scored) against file size.

    Returns SVG, "" where there is nothing to draw. Without scores the untuned base's levels are left out:
    what they are compared with is another model.
    """
    scored = all(task_score(found) is not None for model, found in evaluations.items() if not is_base(model))
    places = _places(evaluations, scored)
    if not places:
        return ""
    same_top_label = (
        f"same top token as {'what it was made from' if served_of(evaluations) else 'the 16-bit model'}, %"
    )
    label = "task score, points" if scored else same_top_label
    unit, divisor = ("GB", 1e9) if max(place.size for place in places) >= 1e9 else ("MB", 1e6)
    places = [Place(one.model, one.size / divisor, one.value, one.low, one.high) for one in places]
    ranges = _ranges(places)
    figure, panels = panels_of(f"file size, {unit}", label, INCHES, [3, 1][: len(ranges)])
    figure.set_dpi(72)  # so that a pixel is a point
    front = pareto_front(places)
    for axes, (low, high) in zip(panels, ranges, strict=True):
        _draw(axes, places, front, recommended)
        axes.set_ylim(low, high)
        axes.set_xlim(0, max(one.size for one in places) * 1.14)
        axes.yaxis.get_major_locator().set_params(nbins=6 if axes is panels[0] else 2)
    if len(panels) > 1:  # slashes on the left edge, where the scale is broken
        slash = {
            "marker": [(-1, -0.6), (1, 0.6)],
            "markersize": 8,
            "color": MUTED,
            "linestyle": "none",
            "clip_on": False,
        }
        panels[0].plot([0], [0], transform=panels[0].transAxes, **slash)
        panels[1].plot([0], [1], transform=panels[1].transAxes, **slash)
    figure.draw_without_rendering()  # the layout fixes where a value lies
    for axes, (low, high) in zip(panels, ranges, strict=True):
        _label(axes, [one for one in places if low <= one.value <= high], recommended)
    words = "; ".join(
        f"{one.model} {one.size:.4g} {unit}, {one.value:.1f} ({one.low:.1f} to {one.high:.1f})"
        for one in places
    )
    return svg_of(
        figure,
        "quality",
        "Quality against file size",
        f"{label} by file size: {words}. On the Pareto front, where nothing smaller is as good: "
        f"{', '.join(one.model for one in front)}.",
    )


def pareto_front(places: Sequence[Place]) -> list[Place]:
    """Those that no other one beats by being at most as large and at least as good; the smallest first."""
    front: list[Place] = []
    for one in sorted(places, key=lambda place: (place.size, -place.value)):
        if not front or one.value > front[-1].value:
            front.append(one)
    return front


def _places(evaluations: Mapping[str, Mapping[str, Any]], scored: bool) -> list[Place]:
    places = []
    for model, found in evaluations.items():
        score, same = task_score(found), found.get("same_top")
        if scored and score is not None:
            low, high = min(found["task"]["score_low"], score), max(found["task"]["score_high"], score)
            places.append(Place(model, found["bytes"], score * 100, low * 100, high * 100))
        elif not scored and same is not None and not is_base(model):
            places.append(Place(model, found["bytes"], same * 100, same * 100, same * 100))
    return places


def _ranges(places: Sequence[Place]) -> list[tuple[float, float]]:
    """The y axis from bottom to top; in two parts, the upper first, where nothing lies between the untuned
    base and the tuned models.
    """
    untuned, tuned = ([one for one in places if is_base(one.model) == base] for base in (True, False))
    groups = [group for group in (tuned, untuned) if group]
    spans = sorted(
        ((min(one.low for one in group), max(one.high for one in group)) for group in groups), reverse=True
    )
    least, most = spans[-1][0], spans[0][1]
    if len(spans) == 1 or spans[0][0] - spans[1][1] < BREAK * (most - least):
        spans = [(least, most)]
    room = 0.16 if len(places) <= 8 else 0.3  # for names above and below the intervals
    return [(low - room * max(high - low, 5), high + room * max(high - low, 5)) for low, high in spans]


def _draw(axes: Any, places: Sequence[Place], front: Sequence[Place], recommended: str | None) -> None:
    """The models with their intervals, and the front."""
    if len(front) > 1:
        axes.plot(
            [one.size for one in front],
            [one.value for one in front],
            drawstyle="steps-post",
            color=MUTED,
            linewidth=1.3,
            linestyle=(0, (4, 3)),
        )
    for one in places:
        color = ACCENT if one.model == recommended else MUTED if is_base(one.model) else INK
        axes.errorbar(
            [one.size],
            [one.value],
            yerr=[[one.value - one.low], [one.high - one.value]],
            fmt="o",
            color=color,
            markersize=7,
            markerfacecolor=CARD if is_base(one.model) else color,
            markeredgewidth=1.6,
            capsize=3.5,
            elinewidth=1.5,
        )


def _label(axes: Any, places: Sequence[Place], recommended: str | None) -> None:
    """Each model's name where it covers no interval and no other name; the recommended one chooses first."""
    points = {
        one.model: axes.transData.transform(
            [(one.size, one.value), (one.size, one.low), (one.size, one.high)]
        )
        for one in places
    }
    taken: list[Box] = [(at[0][0] - 5, at[1][1] - 5, at[0][0] + 5, at[2][1] + 5) for at in points.values()]
    frame = axes.get_window_extent()
    for one in sorted(places, key=lambda place: (place.model != recommended, place.size, -place.value)):
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
            color=ACCENT if one.model == recommended else MUTED if is_base(one.model) else INK,
            annotation_clip=False,
            fontweight="bold" if one.model == recommended else "normal",
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
