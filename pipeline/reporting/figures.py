"""The report's plots as inline SVG: the same input gives the same bytes, and the page's colours apply to them."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

# drawn in these and then replaced by the page's variables, so that light, dark and print follow the page
COLOURS = {"#0a0b0c": "var(--ink)", "#6a6b6c": "var(--muted)", "#d1d2d3": "var(--line)", "#1a6b8c": "var(--accent)", "#9c4a1a": "var(--warm)"}
INK, MUTED, LINE, ACCENT, WARM = COLOURS
INCHES = (6.4, 3.5)
SMALL = (6.4, 2.6)  # the training's plots, which stand side by side with the same steps below
SMOOTH_FROM = 120  # steps from which a curve is also drawn smoothed
USUAL_GRADIENT = (0.1, 10.0)
Rows = Sequence[Mapping[str, Any]]


def quality_plot(evaluations: Mapping[str, Mapping[str, Any]], recommended: str | None) -> str:
    """Task score in points with its 95 % interval (same top token in % where nothing was scored) against file size.

    `evaluations` are the tuned models. Returns SVG, "" where there is nothing to draw.
    """
    scored = all(found.get("task") for found in evaluations.values())
    places = {name: _place(found, scored) for name, found in evaluations.items() if scored or found.get("same_top") is not None}
    if not places:
        return ""
    label = "task score, points" if scored else "same top token as F16, %"
    unit, divisor = ("GB", 1e9) if max(place[0] for place in places.values()) >= 1e9 else ("MB", 1e6)
    places = {name: (size / divisor, *rest) for name, (size, *rest) in places.items()}
    figure, axes = _axes(f"file size, {unit}", label)
    for order, name in enumerate(sorted(places, key=lambda name: places[name][0])):
        size, value, low, high = places[name]
        colour = ACCENT if name == recommended else MUTED
        reach = [[value - low], [high - value]]
        axes.errorbar([size], [value], yerr=reach, fmt="o", color=colour, markersize=7, capsize=4, elinewidth=1.6, clip_on=False)
        above = order % 2 == 0  # neighbours' names go to opposite ends, or they would overlap
        axes.annotate(name, (size, high if above else low), xytext=(0, 7 if above else -7), textcoords="offset points", ha="center",
                      va="bottom" if above else "top", color=colour if name == recommended else INK,
                      fontweight="bold" if name == recommended else "normal")  # fmt: skip
    axes.set_xlim(0, max(place[0] for place in places.values()) * 1.12)
    axes.margins(y=0.25)
    words = "; ".join(f"{name} {size:.4g} {unit}, {value:.1f}" for name, (size, value, _, _) in places.items())
    return _svg(figure, "quality", "Quality against file size", f"{label} by file size: {words}.")


def training_plots(log: Rows, journal: Rows, eval_loss: float | None = None) -> dict[str, str]:
    """The curves of a training run by name, as SVG; "" for one of which nothing was recorded.

    `log` are the rows of reports/train.csv, `journal` those of reports/train.jsonl; `eval_loss` is drawn at the last step where `log` has none.
    """
    losses = _points(log, "loss")
    if not losses:
        return {}
    evaluations = _points(log, "eval_loss") or ([(losses[-1][0], eval_loss)] if eval_loss is not None else [])
    steps = (losses[0][0], losses[-1][0])
    return {
        "loss": _loss_plot(losses, evaluations, steps),
        "gradient": _gradient_plot([point for point in _points(log, "grad_norm") if point[1] > 0], steps),
        "rate": _plain_plot("rate", "Learning rate", "learning rate", _points(log, "learning_rate"), steps, smooth=False),
        "speed": _plain_plot("speed", "Speed", "tokens per second", _points(journal, "tokens_per_second"), steps),
    }


def _loss_plot(losses: list[tuple[float, float]], evaluations: list[tuple[float, float]], steps: tuple[float, float]) -> str:
    """Training loss as a line, the loss on held-out rows as a marked one."""
    figure, axes = _training_axes("loss per trained token", steps)
    _draw(axes, losses)
    words = f"Training loss from {losses[0][1]:.3f} at step {losses[0][0]:.0f} to {losses[-1][1]:.3f} at step {losses[-1][0]:.0f}"
    if evaluations:
        axes.plot(*zip(*evaluations, strict=True), marker="D", color=WARM, markersize=5, linewidth=1.4, clip_on=False)
        place, value = evaluations[-1]
        axes.annotate(f"held out {value:.2f}", (place, value), xytext=(-9, 9), textcoords="offset points", ha="right", color=WARM)
        words += f"; loss on held-out rows {', '.join(f'{value:.3f} at step {place:.0f}' for place, value in evaluations)}"
    axes.set_ylim(0, max(value for _, value in losses + evaluations) * 1.08 or 1.0)
    return _svg(figure, "loss", "Training loss", words + ".")


def _gradient_plot(norms: list[tuple[float, float]], steps: tuple[float, float]) -> str:
    """The gradient norm before clipping on a logarithmic scale, with the usual range as a band."""
    if not norms:
        return ""
    figure, axes = _training_axes("norm before clipping", steps)
    axes.axhspan(*USUAL_GRADIENT, color=LINE, alpha=0.35, linewidth=0)
    _draw(axes, norms)
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    values = [value for _, value in norms]
    axes.set_ylim(min(*values, 0.1) / 1.6, max(*values, 10.0) * 1.6)
    low, high = USUAL_GRADIENT
    words = f"Gradient norm before clipping, {min(values):.3g} to {max(values):.3g}; usual are {low:g} to {high:g}, shown as a band."
    return _svg(figure, "gradient", "Gradient norm", words)


def _plain_plot(name: str, title: str, label: str, points: list[tuple[float, float]], steps: tuple[float, float], *, smooth: bool = True) -> str:
    """One curve from 0."""
    if not points:
        return ""
    figure, axes = _training_axes(label, steps)
    _draw(axes, points, smooth=smooth)
    values = [value for _, value in points]
    axes.set_ylim(0, max(values) * 1.1 or 1.0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}")
    words = f"{title} in {label}" if label != title.lower() else title
    return _svg(figure, name, title, f"{words}, {min(values):.3g} to {max(values):.3g}, at the last step {values[-1]:.3g}.")


def _points(rows: Rows, key: str) -> list[tuple[float, float]]:
    """(step, value) of the rows that have a finite value."""
    found = [(float(row["step"]), float(row[key])) for row in rows if row.get(key) not in (None, "")]
    return [(step, value) for step, value in found if math.isfinite(value)]


def _draw(axes: Any, points: list[tuple[float, float]], *, smooth: bool = True) -> None:
    """A curve; of many steps the single values as a faint line, their running mean as the line to read."""
    steps, values = zip(*points, strict=True)
    if smooth and len(points) > SMOOTH_FROM:
        axes.plot(steps, values, color=MUTED, linewidth=0.6, alpha=0.45)
        window = len(points) // 40
        near = [values[max(0, i - window) : i + window + 1] for i in range(len(values))]
        values = tuple(sum(some) / len(some) for some in near)
    axes.plot(steps, values, color=ACCENT, linewidth=2, marker="o" if len(points) == 1 else "")


def _place(found: Mapping[str, Any], scored: bool) -> tuple[float, ...]:
    """(size in bytes, value, its low end, its high end), value in points or percent."""
    size = float(found["bytes"])
    if scored:
        task = found["task"]
        return size, task["score"] * 100, min(task["score_low"], task["score"]) * 100, max(task["score_high"], task["score"]) * 100
    return size, found["same_top"] * 100, found["same_top"] * 100, found["same_top"] * 100


def _training_axes(y_label: str, steps: tuple[float, float]) -> tuple[Any, Any]:
    """Axes over the run's steps, the same in every plot."""
    figure, axes = _axes("optimizer step", y_label, SMALL)
    axes.set_xlim(steps[0], max(steps[1], steps[0] + 1))
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure, axes


def _axes(x_label: str, y_label: str, inches: tuple[float, float] = INCHES) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # not pyplot: no global state, no display

    figure = Figure(figsize=inches, layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    axes.set_xlabel(x_label, color=MUTED)
    axes.set_ylabel(y_label, color=MUTED)
    axes.tick_params(colors=MUTED, length=0)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    return figure, axes


def _svg(figure: Any, name: str, title: str, description: str) -> str:
    """The figure as an `<svg>` element for an HTML page: ids of its own, no date, no namespaces, a text alternative."""
    import matplotlib

    output = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 10}):
        figure.savefig(output, format="svg", metadata={"Date": None, "Creator": None})
    text = output.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    text = re.sub(r' (xmlns(:xlink)?|version|width|height)="[^"]*"', "", text.split(">", 1)[0]) + ">" + text.split(">", 1)[1]
    for written, wanted in {"xlink:href=": "href=", 'id="': f'id="{name}-', 'href="#': f'href="#{name}-', "url(#": f"url(#{name}-"}.items():
        text = text.replace(written, wanted)
    for drawn, shown in COLOURS.items():
        text = text.replace(drawn, shown)
    opening = f'<svg class="plot" role="img" aria-labelledby="{name}-title {name}-description"'
    alternative = f'><title id="{name}-title">{escape(title)}</title><desc id="{name}-description">{escape(description)}</desc>'
    return opening + text.removeprefix("<svg").replace(">", alternative, 1)
