"""Score against memory, with the line that files must stay left of."""

from collections.abc import Mapping
from typing import Any

from pipeline.core.units import MEMORY_GB, memory_gb
from pipeline.pages.labels import Place, put_labels
from pipeline.pages.plots import ACCENT, CARD, INK, MUTED, WARM, axes_of, svg_of

INCHES = (7.6, 4.1)
FAR = 3.0  # a limit so many times above all files would press them against the left edge


def score_plot(report: Mapping[str, Any]) -> str:
    """Each file's mean score with its 95 % interval against the memory that it takes where it is served; the
    best is colored, a file that doesn't fit is hollow. Returns SVG.
    """
    files, room = report["files"], report["room_bytes"] / MEMORY_GB
    best = report["verdict"]["best"]
    places = [
        Place(
            name,
            one["memory"]["total_bytes"] / MEMORY_GB,
            *(100 * one["task"][key] for key in ("score", "score_low", "score_high")),
        )
        for name, one in files.items()
    ]
    figure, axes = axes_of("memory where it is served, GB", "score, points", INCHES)
    figure.set_dpi(72)  # so that a pixel is a point
    widest = max(place.size for place in places)
    shown = room <= FAR * widest
    for place in places:
        fits = files[place.model]["memory"]["fits"] is not False
        axes.errorbar(
            [place.size],
            [place.value],
            yerr=[[max(0.0, place.value - place.low)], [max(0.0, place.high - place.value)]],
            fmt="o",
            color=_color(place.model, best, fits=fits),
            markersize=7,
            markerfacecolor=_color(place.model, best, fits=fits) if fits else CARD,
            markeredgewidth=1.6,
            capsize=3.5,
            elinewidth=1.5,
        )
    if shown:
        axes.axvline(room, color=WARM, linewidth=1.3, linestyle=(0, (4, 3)))
        axes.annotate(
            memory_gb(report["room_bytes"]),
            (room, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-4, -2),
            textcoords="offset points",
            ha="right",
            va="top",
            color=WARM,
            fontweight="bold",
        )
    least, most = min(place.low for place in places), max(place.high for place in places)
    spare = 0.16 * max(most - least, 5)
    axes.set_xlim(0, max(widest, room if shown else 0) * 1.14)
    axes.set_ylim(least - spare, most + spare)
    axes.yaxis.get_major_locator().set_params(nbins=6)
    figure.draw_without_rendering()  # the layout fixes where a value lies
    colors = {
        place.model: _color(place.model, best, fits=files[place.model]["memory"]["fits"] is not False)
        for place in places
    }
    put_labels(axes, places, colors, best)
    words = "; ".join(
        f"{one.model} {one.size:.3g} GB, {one.value:.1f} ({one.low:.1f} to {one.high:.1f})" for one in places
    )
    return svg_of(
        figure,
        "judge",
        "Score against memory",
        f"Score in points by memory: {words}. The limit is {memory_gb(report['room_bytes'])}.",
    )


def _color(name: str, best: str | None, *, fits: bool) -> str:
    return ACCENT if name == best else INK if fits else MUTED
