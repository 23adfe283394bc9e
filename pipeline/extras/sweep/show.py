"""Show a sweep's result: on the terminal, and as the page `reports/sweep/NAME.html`. Its plot has an axis for
each key and one for the metric, and a line for each trial.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.commands.terminal import plain_table, wide_console
from pipeline.config.params_text import as_yaml
from pipeline.core.text import plural
from pipeline.pages.formats import MISSING, duration, number, significant
from pipeline.pages.plots import ACCENT, INK, LINE, MUTED, WARM, axes_of, cut, svg_of
from pipeline.pages.templating import fill

SHOWN = 20  # trials on the terminal
LONGEST = 24  # characters of a value
LONGEST_LABEL = 16  # characters of a label in the plot
WIDE = 1.35  # inches; width of an axis
HIGH = 4.0  # inches; height of the plot


class Axis(NamedTuple):
    """Axis of the plot, from 0 at the bottom to 1 at the top, with labels at their heights."""

    name: str
    height: Callable[[Any], float]
    ticks: list[tuple[str, float]]


def show(report: Mapping[str, Any], page: Path) -> None:
    """Print the trials, the best first, the verdict and the command that applies it."""
    from rich.markup import escape

    space = report["space"]
    verdict = report["verdict"]
    console = wide_console()
    keys = [name.removeprefix("train.") for name in space["keys"]]
    table = plain_table(
        "trial", *keys, space["metric"], "state", "time", numbers=[0, len(keys) + 1, len(keys) + 3]
    )
    for trial in ranked(report)[:SHOWN]:
        table.add_row(
            str(trial["trial"]),
            *(escape(value_text(value)) for value in trial["settings"].values()),
            number(trial["value"], 4),
            trial["state"],
            duration(trial["seconds"]),
            style="bold" if verdict and trial["trial"] == verdict["winner"] else None,
        )
    console.print(table)
    more = len(report["trials"]) - SHOWN
    if more > 0:
        console.print(f"{plural(more, 'more trial is', 'more trials are')} on the page.", markup=False)
    if verdict:
        finals = plain_table("finalist", "mean", "95 %", "p", numbers=range(4))
        for finalist, mean in verdict["means"].items():
            test = verdict["differences"].get(finalist)
            low_high = f"{number(mean['low'], 4)}–{number(mean['high'], 4)}"
            p_value = significant(test["p_value"]) if test else MISSING
            finals.add_row(finalist, number(mean["mean"], 4), low_high, p_value)
        console.print(finals)
        console.print(report["sentence"], markup=False)
        console.print(f"To train with it: {report['apply']}", markup=False, soft_wrap=True)
    else:
        console.print(report["sentence"], markup=False)
    console.print(f"The page: {page}", markup=False, soft_wrap=True)


def ranked(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the trials: the complete ones, the best first, then the others."""
    sign = -1 if report["maximize"] else 1

    def rank(trial: Mapping[str, Any]) -> tuple[bool, bool, float, int]:
        value = trial["value"]
        return trial["state"] != "complete", value is None, sign * (value or 0.0), trial["trial"]

    return sorted(report["trials"], key=rank)


def value_text(value: Any) -> str:
    """Return a setting's value as a short text."""
    text = significant(value) if isinstance(value, float) else as_yaml(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def render(report: Mapping[str, Any]) -> str:
    """Return the page as HTML."""
    return fill(
        "sweep.html.jinja",
        setting=value_text,
        report=report,
        trials=ranked(report),
        plot=parallel_plot(report),
    )


def parallel_plot(report: Mapping[str, Any]) -> str:
    """Plot the trials as lines. Pruned ones are dashed; finalists and the winner are emphasized. Returns SVG,
    or "" if no trial has a value.
    """
    space = report["space"]
    trials = [trial for trial in ranked(report) if trial["value"] is not None]
    if not trials:
        return ""
    lines = [key_axis(name, searched) for name, searched in space["keys"].items()]
    lines.append(metric_axis(space["metric"], [trial["value"] for trial in trials], report["maximize"]))
    figure, axes = axes_of("", "", (max(6.0, WIDE * len(lines) + 1.2), HIGH), grid="x")
    winner = report["verdict"]["winner"] if report["verdict"] else None
    finalists = {trial["trial"] for trial in report["finalists"]}
    for trial in reversed(trials):  # the best on top
        color, width = color_of(trial["trial"], winner, finalists)
        values = [*trial["settings"].values(), trial["value"]]
        heights = [axis.height(value) for axis, value in zip(lines, values, strict=True)]
        pruned = trial["state"] == "pruned"
        axes.plot(
            range(len(heights)),
            heights,
            color=WARM if pruned else color,
            linewidth=0.9 if pruned else width,
            linestyle=(0, (4, 3)) if pruned else "-",
            marker="o",
            markersize=3.5,
            gid=f"tip-{trial['trial']}",
        )
    for place, axis in enumerate(lines):
        axes.axvline(place, color=LINE, linewidth=1.2, zorder=0)
        for label, height in axis.ticks:
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
    axes.set_xticks(range(len(lines)), [cut(axis.name, LONGEST_LABEL) for axis in lines])
    axes.set_yticks([])
    axes.set_xlim(-0.15, len(lines) - 0.3)
    axes.set_ylim(-0.06, 1.06)
    axes.spines["bottom"].set_visible(False)
    tips = {trial["trial"]: tip(trial, space["metric"]) for trial in trials}
    return svg_of(
        figure,
        "sweep",
        "Settings and what came of them",
        "; ".join(tips.values()),
        [tips.get(number, "") for number in range(max(tips) + 1)],
    )


def color_of(trial: int, winner: int | None, finalists: set[int]) -> tuple[str, float]:
    """Return (color, width) of a trial's line."""
    if trial == winner:
        return ACCENT, 2.6
    if trial in finalists:
        return INK, 1.5
    return MUTED, 0.9


def tip(trial: Mapping[str, Any], metric: str) -> str:
    """Return a trial as text."""
    settings = ", ".join(f"{key} {value_text(value)}" for key, value in trial["settings"].items())
    return f"trial {trial['trial']} ({trial['state']}): {settings}, {metric} {trial['value']:.4g}"


def key_axis(name: str, searched: Any) -> Axis:
    """Return the axis of a key: choices at equal distances, numbers on their scale."""
    name = name.removeprefix("train.")
    if isinstance(searched, list):
        steps = max(1, len(searched) - 1)
        labels = [(cut(value_text(value), LONGEST_LABEL), at / steps) for at, value in enumerate(searched)]
        return Axis(name, lambda value: searched.index(value) / steps, labels)
    low = searched["low"]
    high = searched["high"]
    if searched["log"]:
        return number_axis(name, low, high, math.sqrt(low * high), math.log)
    return number_axis(name, low, high, (low + high) / 2)


def metric_axis(metric: str, values: list[float], maximize: bool) -> Axis:
    """Return the axis of the metric, the best at the top."""
    low = min(values)
    high = max(values)
    axis = number_axis(metric, low, high, (low + high) / 2)
    if maximize:
        return axis
    return Axis(metric, lambda value: 1 - axis.height(value), [(label, 1 - at) for label, at in axis.ticks])


def number_axis(
    name: str, low: float, high: float, middle: float, scale: Callable[[float], float] = float
) -> Axis:
    """Return an axis from `low` to `high`, with labels there and at `middle`."""
    start = scale(low)
    length = scale(high) - start

    def height(value: float) -> float:
        return (scale(value) - start) / length if length else 0.5

    marks = [low, middle, high] if length else [low]
    return Axis(name, height, [(f"{mark:.3g}", height(mark)) for mark in marks])
