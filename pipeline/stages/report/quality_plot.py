"""Plot of quality against file size as inline SVG: tuned levels, the untuned base's, their Pareto front."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.config.products import is_base, product_of
from pipeline.gate.evaluations import Evaluations
from pipeline.pages.plots import ACCENT, INK, MUTED, Place, panels_of, put_labels, put_point, svg_of

INCHES = (7.6, 4.1)
BREAK = 0.4  # share of the entire range; a gap as large breaks the scale


def quality_plot(evaluations: Evaluations, recommended: str | None) -> str:
    """Plot the task score in points with its 95 % interval against file size. If not every tuned model was
    scored, plot the same top token in % instead.

    Return SVG, "" if there is nothing to draw. Without scores the untuned base's levels are left out, because
    they are compared with another model.
    """
    scored = all(
        evaluation.score is not None for model, evaluation in evaluations.items() if not is_base(model)
    )
    places = _places(evaluations, scored)
    if not places:
        return ""
    reference = "what it was made from" if product_of(evaluations).served else "the 16-bit model"
    label = "task score, points" if scored else f"same top token as {reference}, %"
    unit, divisor = ("GB", 1e9) if max(place.size for place in places) >= 1e9 else ("MB", 1e6)
    places = [replace(place, size=place.size / divisor) for place in places]
    ranges = _ranges(places)
    figure, panels = panels_of(f"file size, {unit}", label, INCHES, [3, 1][: len(ranges)])
    figure.set_dpi(72)  # one pixel is one point
    front = pareto_front(places)
    for axes, (low, high) in zip(panels, ranges, strict=True):
        _draw(axes, places, front, recommended)
        axes.set_ylim(low, high)
        axes.set_xlim(0, max(place.size for place in places) * 1.14)
        axes.yaxis.get_major_locator().set_params(nbins=6 if axes is panels[0] else 2)
    if len(panels) > 1:  # slashes on the left edge mark the broken scale
        slash = {
            "marker": [(-1, -0.6), (1, 0.6)],
            "markersize": 8,
            "color": MUTED,
            "linestyle": "none",
            "clip_on": False,
        }
        panels[0].plot([0], [0], transform=panels[0].transAxes, **slash)
        panels[1].plot([0], [1], transform=panels[1].transAxes, **slash)
    figure.draw_without_rendering()  # the layout determines where a value is
    for axes, (low, high) in zip(panels, ranges, strict=True):
        shown = [place for place in places if low <= place.value <= high]
        colors = {place.model: _color(place.model, recommended) for place in shown}
        put_labels(axes, shown, colors, recommended)
    words = "; ".join(
        f"{place.model} {place.size:.4g} {unit}, {place.value:.1f} ({place.low:.1f} to {place.high:.1f})"
        for place in places
    )
    return svg_of(
        figure,
        "quality",
        "Quality against file size",
        f"{label} by file size: {words}. On the Pareto front, where nothing smaller is as good: "
        f"{', '.join(place.model for place in front)}.",
    )


def pareto_front(places: Sequence[Place]) -> list[Place]:
    """Return the models that no other beats (at most as large, at least as good), the smallest first."""
    front: list[Place] = []
    for place in sorted(places, key=lambda place: (place.size, -place.value)):
        if not front or place.value > front[-1].value:
            front.append(place)
    return front


def _places(evaluations: Evaluations, scored: bool) -> list[Place]:
    places = []
    for model, evaluation in evaluations.items():
        score = evaluation.score
        same = evaluation.same_top
        if scored and evaluation.task and score is not None:
            low, high = evaluation.task.interval
            low, high = min(low, score), max(high, score)
            places.append(Place(model, evaluation.bytes, score * 100, low * 100, high * 100))
        elif not scored and same is not None and not is_base(model):
            places.append(Place(model, evaluation.bytes, same * 100, same * 100, same * 100))
    return places


def _ranges(places: Sequence[Place]) -> list[tuple[float, float]]:
    """Return the y axis from bottom to top.

    It has two parts, upper first, if nothing is between base and tuned.
    """
    untuned = [place for place in places if is_base(place.model)]
    tuned = [place for place in places if not is_base(place.model)]
    spans = [
        (min(place.low for place in group), max(place.high for place in group))
        for group in (tuned, untuned)
        if group
    ]
    spans.sort(reverse=True)
    least, most = spans[-1][0], spans[0][1]
    gap = spans[0][0] - spans[-1][1]
    if gap <= 0 or gap < BREAK * (most - least):  # groups that touch are one part, even if all scores are 0
        spans = [(least, most)]
    room = 0.16 if len(places) <= 8 else 0.3  # space for names above and below the intervals
    ranges = []
    for low, high in spans:
        margin = room * max(high - low, 5)
        ranges.append((low - margin, high + margin))
    return ranges


def _draw(axes: Any, places: Sequence[Place], front: Sequence[Place], recommended: str | None) -> None:
    """Draw the models with their intervals, and the front."""
    if len(front) > 1:
        axes.plot(
            [place.size for place in front],
            [place.value for place in front],
            drawstyle="steps-post",
            color=MUTED,
            linewidth=1.3,
            linestyle=(0, (4, 3)),
        )
    for place in places:
        put_point(axes, place, _color(place.model, recommended), hollow=is_base(place.model))


def _color(model: str, recommended: str | None) -> str:
    """Return the color of a model's point and name."""
    if model == recommended:
        return ACCENT
    return MUTED if is_base(model) else INK
