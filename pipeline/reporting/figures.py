"""The report's two plots as inline SVG: the same input gives the same bytes, and the page's colours apply to them."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

# drawn in these and then replaced by the page's variables, so that light, dark and print follow the page
COLOURS = {"#0a0b0c": "var(--ink)", "#6a6b6c": "var(--muted)", "#d1d2d3": "var(--line)", "#1a6b8c": "var(--accent)", "#9c4a1a": "var(--warm)"}
INK, MUTED, LINE, ACCENT, WARM = COLOURS
INCHES = (6.4, 3.5)
SMOOTH_FROM = 120  # steps from which the loss is also drawn smoothed


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


def loss_plot(log: Sequence[Mapping[str, Any]], eval_loss: float | None) -> str:
    """The training loss per step, with the evaluation loss after the last step. Returns SVG, "" for an empty log."""
    points = [(float(row["step"]), float(row["loss"])) for row in log if row.get("loss") not in (None, "")]
    if not points:
        return ""
    steps, losses = zip(*points, strict=True)
    figure, axes = _axes("optimizer step", "loss per trained token")
    if len(points) > SMOOTH_FROM:  # single steps as a faint line, their running mean as the line to read
        axes.plot(steps, losses, color=MUTED, linewidth=0.6, alpha=0.45)
        window = len(points) // 40
        means = [sum(losses[max(0, i - window) : i + window + 1]) / len(losses[max(0, i - window) : i + window + 1]) for i in range(len(losses))]
        axes.plot(steps, means, color=ACCENT, linewidth=2)
    else:
        axes.plot(steps, losses, color=ACCENT, linewidth=2, marker="o" if len(points) == 1 else "")
    words = f"Training loss from {losses[0]:.3f} at step {steps[0]:.0f} to {losses[-1]:.3f} at step {steps[-1]:.0f}"
    if eval_loss is not None:
        axes.plot([steps[-1]], [eval_loss], marker="D", color=WARM, markersize=7, linestyle="none", clip_on=False)
        axes.annotate(f"held out {eval_loss:.2f}", (steps[-1], eval_loss), xytext=(-9, 9), textcoords="offset points", ha="right", color=WARM)
        words += f"; loss on held-out rows {eval_loss:.3f}"
    axes.set_ylim(0, max(*losses, eval_loss or 0.0) * 1.08 or 1.0)
    return _svg(figure, "loss", "Training loss", words + ".")


def _place(found: Mapping[str, Any], scored: bool) -> tuple[float, ...]:
    """(size in bytes, value, its low end, its high end), value in points or percent."""
    size = float(found["bytes"])
    if scored:
        task = found["task"]
        return size, task["score"] * 100, min(task["score_low"], task["score"]) * 100, max(task["score_high"], task["score"]) * 100
    return size, found["same_top"] * 100, found["same_top"] * 100, found["same_top"] * 100


def _axes(x_label: str, y_label: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # not pyplot: no global state, no display

    figure = Figure(figsize=INCHES, layout="constrained")
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
