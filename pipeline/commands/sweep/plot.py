"""Parallel coordinates: an axis for each key and one for the metric, a line for each trial."""

import math
from collections.abc import Mapping
from typing import Any

from pipeline.commands.sweep.terminal import ranked, value_text
from pipeline.pages.plots import ACCENT, INK, LINE, MUTED, WARM, axes_of, cut, svg_of

WIDE, HIGH = 1.35, 4.0  # inches: of an axis, of the plot
LONGEST = 16  # letters of a label
Axis = Mapping[str, Any]


def parallel_plot(report: Mapping[str, Any]) -> str:
    """The trials as lines; those that were pruned are dashed, finalists and the winner stand out. Returns
    SVG, or "" if no trial has a value.
    """
    space, trials = report["space"], [one for one in ranked(report) if one["value"] is not None]
    if not trials:
        return ""
    axes_found = [key_axis(name, searched) for name, searched in space["keys"].items()]
    axes_found.append(metric_axis(space["metric"], [one["value"] for one in trials], report["maximize"]))
    figure, axes = axes_of("", "", (max(6.0, WIDE * len(axes_found) + 1.2), HIGH), grid="x")
    winner = report["verdict"]["winner"] if report["verdict"] else None
    finalists = {one["trial"] for one in report["finalists"]}
    for one in reversed(trials):  # the best on top
        color, width = color_of(one["trial"], winner, finalists)
        heights = [
            axis["height"](value)
            for axis, value in zip(axes_found, [*one["settings"].values(), one["value"]], strict=True)
        ]
        pruned = one["state"] == "pruned"
        axes.plot(
            range(len(heights)),
            heights,
            color=WARM if pruned else color,
            linewidth=0.9 if pruned else width,
            linestyle=(0, (4, 3)) if pruned else "-",
            marker="o",
            markersize=3.5,
            gid=f"tip-{one['trial']}",
        )
    for place, axis in enumerate(axes_found):
        axes.axvline(place, color=LINE, linewidth=1.2, zorder=0)
        for label, height in axis["ticks"]:
            axes.annotate(
                label,
                (place, height),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                color=MUTED,
                fontsize=8,
                bbox={"facecolor": "#fefdfc", "edgecolor": "none", "pad": 0.8, "alpha": 0.8},
            )
    axes.set_xticks(range(len(axes_found)), [cut(axis["name"], LONGEST) for axis in axes_found])
    axes.set_yticks([])
    axes.set_xlim(-0.15, len(axes_found) - 0.3)
    axes.set_ylim(-0.06, 1.06)
    axes.spines["bottom"].set_visible(False)
    tips = {one["trial"]: tip(one, space["metric"]) for one in trials}
    return svg_of(
        figure,
        "sweep",
        "Settings and what came of them",
        "; ".join(tips.values()),
        [tips.get(number, "") for number in range(max(tips) + 1)],
    )


def color_of(trial: int, winner: int | None, finalists: set[int]) -> tuple[str, float]:
    """(color, width) of a trial's line."""
    return (ACCENT, 2.6) if trial == winner else (INK, 1.5) if trial in finalists else (MUTED, 0.9)


def tip(one: Mapping[str, Any], metric: str) -> str:
    """A trial in words."""
    settings = ", ".join(f"{key} {value_text(value)}" for key, value in one["settings"].items())
    return f"trial {one['trial']} ({one['state']}): {settings}, {metric} {one['value']:.4g}"


def key_axis(name: str, searched: Any) -> Axis:
    """The axis of a key: choices at equal distances, numbers on their scale."""
    if isinstance(searched, list):
        steps = max(1, len(searched) - 1)
        return {
            "name": name.removeprefix("train."),
            "height": lambda value: searched.index(value) / steps,
            "ticks": [(cut(value_text(value), LONGEST), at / steps) for at, value in enumerate(searched)],
        }
    scale = math.log if searched["log"] else float
    low, high = searched["low"], searched["high"]
    middle = math.sqrt(low * high) if searched["log"] else (low + high) / 2
    return number_axis(name.removeprefix("train."), low, high, middle, scale)


def metric_axis(metric: str, values: list[float], maximize: bool) -> Axis:
    """The axis of the metric, the best above."""
    low, high = min(values), max(values)
    axis = number_axis(metric, low, high, (low + high) / 2, float)
    if maximize:
        return axis
    return {
        "name": metric,
        "height": lambda value: 1 - axis["height"](value),
        "ticks": [(label, 1 - at) for label, at in axis["ticks"]],
    }


def number_axis(name: str, low: float, high: float, middle: float, scale: Any) -> Axis:
    """An axis from `low` to `high`, marked there and at `middle`."""
    start, length = scale(low), scale(high) - scale(low)

    def height(value: float) -> float:
        return (scale(value) - start) / length if length else 0.5

    marks = [low, middle, high] if length else [low]
    return {"name": name, "height": height, "ticks": [(f"{mark:.3g}", height(mark)) for mark in marks]}
