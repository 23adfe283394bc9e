"""Quality against file size as inline SVG: tuned levels, the untuned base's, and their Pareto front."""

from collections.abc import Sequence
from typing import Any

from pipeline.config.products import is_base, product_of
from pipeline.gate.evaluations import Evaluations
from pipeline.pages.plots import ACCENT, INK, MUTED, Place, panels_of, put_labels, put_point, svg_of

INCHES = (7.6, 4.1)
BREAK = 0.4  # of the entire range: a gap as large breaks the scale


def quality_plot(evaluations: Evaluations, recommended: str | None) -> str:
    """Task score in points with its 95 % interval (same top token in % where not every tuned model was
    scored) against file size.

    Returns SVG, "" where there is nothing to draw. Without scores the untuned base's levels are left out:
    what they are compared with is another model.
    """
    scored = all(found.score is not None for model, found in evaluations.items() if not is_base(model))
    places = _places(evaluations, scored)
    if not places:
        return ""
    reference = "what it was made from" if product_of(evaluations).served else "the 16-bit model"
    label = "task score, points" if scored else f"same top token as {reference}, %"
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
        shown = [one for one in places if low <= one.value <= high]
        put_labels(axes, shown, {one.model: _color(one.model, recommended) for one in shown}, recommended)
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


def _places(evaluations: Evaluations, scored: bool) -> list[Place]:
    places = []
    for model, found in evaluations.items():
        score, same = found.score, found.same_top
        if scored and found.task and score is not None:
            low, high = found.task.interval
            low, high = min(low, score), max(high, score)
            places.append(Place(model, found.bytes, score * 100, low * 100, high * 100))
        elif not scored and same is not None and not is_base(model):
            places.append(Place(model, found.bytes, same * 100, same * 100, same * 100))
    return places


def _ranges(places: Sequence[Place]) -> list[tuple[float, float]]:
    """The y axis from bottom to top; in two parts, upper first, if nothing is between base and tuned."""
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
        put_point(axes, one, _color(one.model, recommended), hollow=is_base(one.model))


def _color(model: str, recommended: str | None) -> str:
    """Of a point and its name."""
    return ACCENT if model == recommended else MUTED if is_base(model) else INK
