"""Matplotlib figures as inline SVG: the same input gives the same bytes, and the page's colors apply to them.
Models can be points of a plot, each on its interval, with their names where there is room for them.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

LETTER = 5.9  # width of a label's letter, in points
HEIGHT = 11.0  # height of a label's line, in points
Box = tuple[float, float, float, float]  # left, bottom, right, top


if TYPE_CHECKING:
    from markupsafe import Markup

# Figures are drawn in these colors, which are then replaced by the page's variables, so that light, dark and
# print follow the page.
COLORS = {
    "#0a0b0c": "var(--ink)",
    "#6a6b6c": "var(--muted)",
    "#d1d2d3": "var(--line)",
    "#1a6b8c": "var(--accent)",
    "#9c4a1a": "var(--warm)",
    "#fefdfc": "var(--card)",
    "#2a6b3b": "var(--good)",
    "#a9311e": "var(--bad)",
}
INK, MUTED, LINE, ACCENT, WARM, CARD, GOOD, BAD = COLORS


def axes_of(x_label: str, y_label: str, inches: tuple[float, float], *, grid: str = "y") -> tuple[Any, Any]:
    """Return (figure, axes) in the page's colors, with grid lines at the ticks of axis `grid`."""
    figure, (axes,) = panels_of(x_label, y_label, inches, [1], grid=grid)
    return figure, axes


def panels_of(
    x_label: str, y_label: str, inches: tuple[float, float], heights: Sequence[float], *, grid: str = "y"
) -> tuple[Any, list[Any]]:
    """Return (figure, panels of relative `heights` below each other over one x axis) in the page's colors."""
    from matplotlib.figure import Figure  # Not pyplot: no global state, no display.

    figure = Figure(figsize=inches, layout="constrained")
    figure.patch.set_alpha(0)
    panels = list(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    for axes in panels:
        axes.patch.set_alpha(0)
        axes.tick_params(colors=MUTED, length=0)
        axes.grid(axis=grid, color=LINE, linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right", "left", "bottom"):
            axes.spines[side].set_visible(side == "bottom" and axes is panels[-1])
        axes.spines["bottom"].set_color(LINE)
    panels[-1].set_xlabel(x_label, color=MUTED)
    panels[0].set_ylabel(y_label, color=MUTED)
    return figure, panels


def put_interval(axes: Any, row: int, middle: float, ends: tuple[float, float], color: str, fmt: str) -> None:
    """Draw a value on its interval in a row of the plot, with a marker in Matplotlib's `fmt`."""
    looks = {"fmt": fmt, "color": color, "markersize": 6.5, "capsize": 3.5, "elinewidth": 1.6}
    axes.errorbar([middle], [row], xerr=reach(middle, ends), **looks)


def reach(middle: float, ends: tuple[float, float]) -> list[list[float]]:
    """Return an interval's reach below and above a value in it, as Matplotlib's error bars accept it."""
    return [[max(0.0, middle - ends[0])], [max(0.0, ends[1] - middle)]]


def name_rows(axes: Any, names: Sequence[str]) -> None:
    """Name a plot's rows on the left, the first above."""
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", colors=INK)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x", color=LINE)


def canvas(width: float, height: float) -> tuple[Any, Any]:
    """Return (figure, axes) without a scale: a unit is a point, y grows downwards."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72))
    figure.patch.set_alpha(0)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    return figure, axes


def cut(text: str, longest: int) -> str:
    """Return the text; letters after the first `longest` are an ellipsis."""
    return text if len(text) <= longest else text[: longest - 1].rstrip(" ,") + "…"


def svg_of(figure: Any, name: str, title: str, description: str, tips: Sequence[str] = ()) -> "Markup":
    """Return the figure as an `<svg>` element of class `name` for an HTML page: ids of its own, no date, no
    namespaces, a text alternative. An artist whose gid is `tip-N` shows the Nth of `tips` under the pointer.
    """
    import matplotlib
    from markupsafe import Markup

    output = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 10}):
        figure.savefig(output, format="svg", metadata={"Date": None, "Creator": None})
    head, _, body = output.getvalue().partition("<svg")[2].partition(">")
    (view_box,) = re.findall(r' viewBox="[^"]*"', head)
    # Nothing refers to ids such as text_1.
    body = re.sub(r'<metadata>.*?</metadata>|<!--.*?-->| id="[\w.]+_\d+"', "", body, flags=re.S)
    body = re.sub(r"\s*\n\s*", " ", body).replace("> <", "><")
    own_ids = {
        "xlink:href=": "href=",
        'id="': f'id="{name}-',
        'href="#': f'href="#{name}-',
        "url(#": f"url(#{name}-",
    }
    shown_tips = {
        f'<g id="{name}-tip-{number}">': f'<g id="{name}-tip-{number}"><title>{escape(tip)}</title>'
        for number, tip in enumerate(tips)
    }
    for written, replacement in (own_ids | COLORS | shown_tips).items():
        body = body.replace(written, replacement)
    return Markup(  # noqa: S704 (matplotlib escapes the texts in it, and we the rest)
        f'<svg class="plot {name}" role="img" aria-labelledby="{name}-title {name}-description"{view_box}>'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-description">{escape(description)}</desc>{body}'
    )


@dataclass(frozen=True)
class Place:
    """Model in a plot: its size, and its value with the ends of its 95 % interval."""

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
        place.model: axes.transData.transform(
            [(place.size, place.value), (place.size, place.low), (place.size, place.high)]
        )
        for place in places
    }
    taken: list[Box] = []
    for (x, _), (_, low), (_, high) in points.values():
        taken.append((x - 5, low - 5, x + 5, high + 5))
    frame = axes.get_window_extent()
    for place in sorted(places, key=lambda place: (place.model != chosen, place.size, -place.value)):
        (x, y), (_, low), (_, high) = points[place.model]
        half = len(place.model) * LETTER / 2
        spots = [(x, high + 11), (x, low - 11), (x + 9 + half, y), (x - 9 - half, y)]
        for step in range(24, 64, 13):
            spots += [(x, high + step), (x, low - step)]
        for step in range(-104, 105, 13):
            spots += [(x + side * (9 + half), y + step) for side in (1, -1)]
        boxes = [_box(spot, half) for spot in spots]
        # A spot costs as much as what it covers; among equals the first wins.
        costs = [_covered(box, taken, frame) for box in boxes]
        best = costs.index(min(costs))
        across, up = spots[best]
        taken.append(boxes[best])
        axes.annotate(
            place.model,
            (place.size, place.value),
            xytext=(across - x, up - y),
            textcoords="offset points",
            ha="center",
            va="center",
            color=colors[place.model],
            annotation_clip=False,
            parse_math=False,  # A name is not a formula.
            fontweight="bold" if place.model == chosen else "normal",
        )


def _box(spot: tuple[float, float], half: float) -> Box:
    """Return the box of a label centered at `spot`, `half` as wide on either side."""
    x, y = spot
    return (x - half, y - HEIGHT / 2, x + half, y + HEIGHT / 2)


def _covered(box: Box, taken: Sequence[Box], frame: Any) -> float:
    """Return the area (square points) that a label at `box` shares with others.

    Outside the frame counts as covered.
    """
    shared = sum(
        max(0.0, min(box[2], other[2]) - max(box[0], other[0]))
        * max(0.0, min(box[3], other[3]) - max(box[1], other[1]))
        for other in taken
    )
    inside = max(0.0, min(box[2], frame.x1) - max(box[0], frame.x0)) * max(
        0.0, min(box[3], frame.y1 + 10) - max(box[1], frame.y0 - 2)
    )
    return float(round(shared + (box[2] - box[0]) * (box[3] - box[1]) - inside, 3))
