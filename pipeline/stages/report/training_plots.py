"""Plots of a run over its optimizer steps: the curves of loss, gradient norm, learning rate and speed as
inline SVG, and its answers to held-out questions.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.pages.plots import ACCENT, CARD, LINE, MUTED, WARM, axes_of, svg_of

SMALL = (6.4, 2.6)  # inches; the plots are next to each other with the same steps below
SMOOTH_FROM = 120  # number of steps from which a curve is also drawn smoothed
USUAL_GRADIENT = (0.1, 10.0)
QUESTIONS_SHOWN = 4  # number of questions shown of training's samples
TIMES_SHOWN = 6  # number of evaluations whose answers to a question are shown
Rows = Sequence[Mapping[str, Any]]
# Measures of a method in addition to its loss, by their name in the metrics log: title, axis label, caption.
MEASURES = {
    "accuracy": (
        "Ranked correctly",
        "share",
        "Share of the step's pairs or answers; held-out ones where training was evaluated.",
    ),
    "margin": ("Margin", "margin", "By how much chosen answers are preferred, in the method's own measure."),
    "reward": (
        "Reward",
        "mean reward",
        "Mean of the step's completions; of held-out prompts where training was evaluated.",
    ),
    "zero_variance": (
        "Groups of equal rewards",
        "share",
        "Share of the step's groups; nothing is learned of them.",
    ),
    "completion_tokens": ("Completions", "tokens", "Tokens of a completion, on average."),
    "entropy": ("Entropy", "nats a token", "−log-probability of a drawn token, on average."),
    "gap": (
        "Rollout against training",
        "nats a token",
        "How far the log-probabilities of drawn tokens differ, on average.",
    ),
}


def training_plots(log: Rows, metrics_log: Rows, eval_loss: float | None = None) -> dict[str, str]:
    """Return the curves of a training run by name, as SVG; "" for one without recorded values.

    `log` are the rows of reports/train.csv, `metrics_log` those of reports/train.jsonl; `eval_loss` is drawn
    at the last step if `log` has none.
    """
    losses = _points(log, "loss")
    if not losses:
        return {}
    evaluations = _points(log, "eval_loss") or ([(losses[-1][0], eval_loss)] if eval_loss is not None else [])
    steps = (losses[0][0], losses[-1][0])
    return _measures(metrics_log, steps) | {
        "loss": _loss_plot(losses, evaluations, steps),
        "gradient": _gradient_plot([point for point in _points(log, "grad_norm") if point[1] > 0], steps),
        "rate": _plain_plot(
            "rate", "Learning rate", "learning rate", _points(log, "learning_rate"), steps, smooth=False
        ),
        "speed": _plain_plot(
            "speed", "Speed", "tokens per second", _points(metrics_log, "tokens_per_second"), steps
        ),
    }


def samples_over_time(metrics_log: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the held-out questions that training answered at each evaluation: {"prompt", "reference",
    "answers": [{"step", "text", "right"}]}.

    Of many evaluations, the first, the last and some evenly in between are returned.
    """
    evaluations = [row for row in metrics_log if row["kind"] == "eval" and row.get("samples")]
    if not evaluations:
        return []
    chosen = [
        evaluations[place]
        for place in sorted(
            {round(part * (len(evaluations) - 1) / (TIMES_SHOWN - 1)) for part in range(TIMES_SHOWN)}
        )
    ]
    return [
        {
            "prompt": question["prompt"],
            "reference": question["reference"],
            "answers": [
                {
                    "step": row["step"],
                    "text": row["samples"][number]["answer"],
                    "right": row["samples"][number]["answer"] == question["reference"],
                }
                for row in chosen
            ],
        }
        for number, question in enumerate(
            chosen[0]["samples"][:QUESTIONS_SHOWN]
        )  # each evaluation has the same questions
    ]


def _measures(metrics_log: Rows, steps: tuple[float, float]) -> dict[str, str]:
    """Return the curves of the method's measures in addition to its loss (`MEASURES`)."""
    drawings: dict[str, str] = {}
    for name, (title, unit, _) in MEASURES.items():
        trained = _measured(metrics_log, "step", name)
        held_out = _measured(metrics_log, "eval", name)
        if trained:
            figure, axes = _training_axes(unit, steps)
            _draw(axes, trained)
            if held_out:
                axes.plot(*zip(*held_out, strict=True), marker="D", color=WARM, markersize=5, linewidth=1.4)
            words = f"{title} from {trained[0][1]:.3g} to {trained[-1][1]:.3g}"
            ends = f"; of held-out ones {held_out[-1][1]:.3g} at the end" if held_out else ""
            drawings[name] = svg_of(figure, name, title, f"{words}{ends}.")
    return drawings


def _measured(metrics_log: Rows, kind: str, name: str) -> list[tuple[float, float]]:
    """Return (step, value) of the measure `name` in the log's rows of one kind."""
    return [
        (float(row["step"]), float(row["measures"][name]))
        for row in metrics_log
        if row["kind"] == kind and name in row.get("measures", {})
    ]


def _loss_plot(
    losses: list[tuple[float, float]], evaluations: list[tuple[float, float]], steps: tuple[float, float]
) -> str:
    """Draw the training loss as a line, and the loss on held-out rows as a marked one."""
    figure, axes = _training_axes("loss", steps)
    _draw(axes, losses)
    words = (
        f"Training loss from {losses[0][1]:.3f} at step {losses[0][0]:.0f} to {losses[-1][1]:.3f} at "
        f"step {losses[-1][0]:.0f}"
    )
    if evaluations:
        axes.plot(
            *zip(*evaluations, strict=True),
            marker="D",
            color=WARM,
            markersize=5,
            linewidth=1.4,
            clip_on=False,
        )
        place, value = evaluations[-1]
        axes.annotate(
            f"held out {value:.2f}",
            (place, value),
            xytext=(-9, 9),
            textcoords="offset points",
            ha="right",
            color=WARM,
            bbox={"facecolor": CARD, "edgecolor": "none", "pad": 1.0},  # The curve passes behind it.
        )
        words += (
            "; loss on held-out rows "
            f"{', '.join(f'{value:.3f} at step {place:.0f}' for place, value in evaluations)}"
        )
    axes.set_ylim(0, max(value for _, value in losses + evaluations) * 1.08 or 1.0)
    return svg_of(figure, "loss", "Training loss", words + ".")


def _gradient_plot(norms: list[tuple[float, float]], steps: tuple[float, float]) -> str:
    """Draw the gradient norm before clipping on a logarithmic scale, with the usual range as a band."""
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
    return svg_of(
        figure,
        "gradient",
        "Gradient norm",
        f"Gradient norm before clipping, {min(values):.3g} to {max(values):.3g}; usual are {low:g} to "
        f"{high:g}, shown as a band.",
    )


def _plain_plot(
    name: str,
    title: str,
    label: str,
    points: list[tuple[float, float]],
    steps: tuple[float, float],
    *,
    smooth: bool = True,
) -> str:
    """Draw one curve from 0."""
    if not points:
        return ""
    figure, axes = _training_axes(label, steps)
    _draw(axes, points, smooth=smooth)
    values = [value for _, value in points]
    axes.set_ylim(0, max(values) * 1.1 or 1.0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}")
    words = f"{title} in {label}" if label != title.lower() else title
    return svg_of(
        figure,
        name,
        title,
        f"{words}, {min(values):.3g} to {max(values):.3g}, at the last step {values[-1]:.3g}.",
    )


def _points(rows: Rows, key: str) -> list[tuple[float, float]]:
    """Return (step, value) of the rows that have a finite value."""
    points = [(float(row["step"]), float(row[key])) for row in rows if row.get(key) not in (None, "")]
    return [(step, value) for step, value in points if math.isfinite(value)]


def _draw(axes: Any, points: list[tuple[float, float]], *, smooth: bool = True) -> None:
    """Draw a curve.

    With many steps, the single values are a faint line and their running mean is the main line.
    """
    steps, values = zip(*points, strict=True)
    if smooth and len(points) > SMOOTH_FROM:
        axes.plot(steps, values, color=MUTED, linewidth=0.6, alpha=0.45)
        window = len(points) // 40
        near = [values[max(0, i - window) : i + window + 1] for i in range(len(values))]
        values = tuple(sum(window_values) / len(window_values) for window_values in near)
    axes.plot(steps, values, color=ACCENT, linewidth=2, marker="o" if len(points) == 1 else "")


def _training_axes(y_label: str, steps: tuple[float, float]) -> tuple[Any, Any]:
    """Return axes over the run's steps, the same in every plot."""
    figure, axes = axes_of("optimizer step", y_label, SMALL)
    axes.set_xlim(steps[0], max(steps[1], steps[0] + 1))
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure, axes
