"""Table of levels. On the page each cell has a text, a small text below it and a value for sorting. On the
terminal the table is followed by the recommendation, the gate, and what to do next.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config.products import REFERENCES, is_base, product_of
from pipeline.config.sections import BASE, ORIGINAL
from pipeline.core.text import console, count, listed
from pipeline.gate.evaluations import Evaluation, Evaluations, Scored, commonest_line
from pipeline.gate.next_steps import NextStep
from pipeline.gate.recommend import Recommendation
from pipeline.gate.verdict import Judgment
from pipeline.metrics.answer_speed import measure_again
from pipeline.pages.formats import MISSING, number, percent, points, size

ANY_WIDTH = 1000  # terminal columns, more than the table ever needs


@dataclass(frozen=True)
class Cell:
    """Content of a cell. `value` is None if nothing was measured or the figure is invalid; it sorts last."""

    value: float | None
    text: str
    small: str = ""


DISTURBED = Cell(None, "disturbed")
Read = Callable[[Evaluation], Cell]  # returns a model's cell of a column, from its evaluation


def _cell(show: Callable[..., str], key: str, *digits: int, spread: str = "") -> Read:
    """Return a column of the figure `key`, with ± the figure `spread` below it."""

    def cell(evaluation: Evaluation) -> Cell:
        value = getattr(evaluation, key)
        error = getattr(evaluation, spread) if spread else None
        return Cell(value, show(value, *digits), f"± {number(error, *digits)}" if error is not None else "")

    return cell


def _speed(key: str) -> Read:
    """Return a column of speeds. A figure that other load spoilt is not shown."""
    speed = _cell(number, key, 1, spread=f"{key}_spread")
    return lambda evaluation: DISTURBED if evaluation.is_disturbed else speed(evaluation)


def _size(evaluation: Evaluation) -> Cell:
    lora = evaluation.lora
    return Cell(evaluation.bytes, size(evaluation.bytes), f"{size(lora.bytes)} of it LoRA" if lora else "")


def _fallback(evaluation: Evaluation) -> Cell:
    fallback = evaluation.fallback_tensors
    tensors = evaluation.tensors
    return Cell(fallback, count(fallback), f"of {count(tensors)}" if tensors else "")


def _memory(evaluation: Evaluation) -> Cell:
    serving = evaluation.serving
    main = serving.peak_memory_bytes if serving else None
    card = serving.gpu_memory_bytes if serving else None
    return Cell(main, size(main), f"GPU {size(card)}" if card else "")


def _score(evaluation: Evaluation) -> Cell:
    task = evaluation.task
    cell = _scored(task)
    if not task or not cell.small or task.scored_rows >= task.rows:
        return cell
    return replace(cell, small=f"{cell.small}, {task.scored_rows} of {task.rows}")


def _of_task(key: str) -> Read:
    def cell(evaluation: Evaluation) -> Cell:
        value = getattr(evaluation.task, key, None)
        return Cell(value, percent(value, 0))

    return cell


def _scored(figures: Scored | None) -> Cell:
    if figures is None:
        return Cell(None, points(None))
    low, high = figures.score_low, figures.score_high
    ends = "" if low is None or high is None else f"{points(low)} to {points(high)}"
    return Cell(figures.score, points(figures.score), ends)


def _divergence(show: Callable[..., str], key: str, *digits: int) -> Read:
    """Return a column of divergence, with the reference below it if that is another kind of model."""

    def cell(evaluation: Evaluation) -> Cell:
        value = getattr(evaluation, key)
        small = f"from {evaluation.reference}"
        return Cell(value, show(value, *digits), small if is_across(evaluation) else "")

    return cell


def is_across(evaluation: Evaluation) -> bool:
    """Return True if an untuned model's divergence is measured from a tuned one. Then it shows what
    fine-tuning changed, and the divergence of its own levels shows the rounding.

    Without a merge every divergence is measured from another kind of model, and the reference is always
    named.
    """
    model = evaluation.model
    reference = evaluation.reference
    if model == BASE or product_of([model]).served:
        return reference != model
    return is_base(model) and not is_base(reference)


GROUPS: Mapping[str, Mapping[str, Read]] = {  # columns under each heading, by their titles
    "File": {
        "size": _size,
        "bits per weight": _cell(number, "bits_per_weight"),
        "fallback tensors": _fallback,
    },
    "Divergence": {
        "perplexity": _cell(number, "perplexity", spread="perplexity_error"),
        "answer KLD": _divergence(number, "kld_mean", 4),
        "its 99.9\u00a0%": _divergence(number, "kld_p999", 3),
        "same top": _divergence(percent, "same_top"),
        "RMS Δp": _divergence(percent, "rms_dp"),
    },
    "Tokens/s": {"prompt": _speed("prompt_tok_s"), "generation": _speed("generation_tok_s")},
    "Served": {"peak memory": _memory},
    "Task": {"score": _score, "stopped": _of_task("stopped"), "refused": _of_task("refused")},
    "General": {"ability": lambda evaluation: _scored(evaluation.general)},
}


SHORT: Mapping[str, Read] = {  # columns of the first screen's table, which a phone shows whole
    "score": GROUPS["Task"]["score"],
    "tokens/s": GROUPS["Tokens/s"]["generation"],
    "size": _size,
    "memory": _memory,
}


def level_rows(
    evaluations: Evaluations, verdicts: Mapping[str, Judgment], advice: Recommendation
) -> list[dict[str, Any]]:
    """Return per model {"model", "tag", "chosen", "gate": its verdict or None, "groups": cells by group,
    "short": cells of the short table}.
    """
    return [
        {
            "model": model,
            "tag": tag_of(model, advice),
            "chosen": model == advice.model,
            "gate": verdicts.get(model),
            "groups": {
                name: [cell(evaluation) for cell in columns.values()] for name, columns in GROUPS.items()
            },
            "short": {name: cell(evaluation) for name, cell in SHORT.items()},
        }
        for model, evaluation in evaluations.items()
    ]


def tag_of(model: str, advice: Recommendation) -> str:
    """Return a tag of one or two words for a model's role."""
    if model == advice.model:
        return "recommended"
    if model == BASE:
        return "base alone"
    if model == ORIGINAL:
        return "original"
    if is_base(model):
        return "untuned base"
    return "reference" if model in REFERENCES else ""


def show(
    evaluations: Evaluations,
    advice: Recommendation,
    verdicts: Mapping[str, Judgment],
    steps: Sequence[NextStep],
) -> None:
    """Print the levels, the recommendation, the models that pass the gate, and what to do next."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("model", no_wrap=True)
    for heading in ("size", "bpw", "ppl", "KLD", "same top", "tok/s", "score"):
        table.add_column(heading, justify="right", no_wrap=True)
    disturbed = [model for model, evaluation in evaluations.items() if evaluation.is_disturbed]
    across = [model for model, evaluation in evaluations.items() if is_across(evaluation)]
    for model, evaluation in evaluations.items():
        star = "*" if model in across else ""
        table.add_row(
            model,
            size(evaluation.bytes),
            number(evaluation.bits_per_weight),
            number(evaluation.perplexity),
            star + number(evaluation.kld_mean, 4),
            star + percent(evaluation.same_top),
            "disturbed" if evaluation.is_disturbed else _tokens_per_second(evaluation),
            points(evaluation.score),
            style="bold" if model == advice.model else None,
        )
    commonest = commonest_line(evaluations)
    if commonest is not None:
        words, score = commonest
        table.add_row(words, *[MISSING] * 6, points(score), style="dim")
    output = console(highlight=False, width=max(80, console().width))
    # A terminal that is too narrow wraps the table instead of losing figures.
    full_width = console(width=ANY_WIDTH).measure(table).maximum
    console(highlight=False, width=max(output.width, full_width)).print(table)
    served = product_of(evaluations).served
    if across and served:
        pairs = [f"{model} against {evaluations[model].reference}" for model in across]
        output.print(f"* {', '.join(pairs)}.")
    elif across:
        reference = evaluations[across[0]].reference
        output.print(f"* {', '.join(across)} against the tuned {reference}: what fine-tuning changed.")
    passed = [model for model, verdict in verdicts.items() if verdict.verdict == "pass"]
    undecided = [model for model, verdict in verdicts.items() if verdict.verdict == "not decided"]
    spoilt = (
        f"Other load disturbed the speeds of {', '.join(disturbed)}: once it has ended, run "
        f"`{measure_again(disturbed)}`."
    )
    for line in (
        *([spoilt] if disturbed else []),
        advice.reason,
        *(f"Beware: {warning}" for warning in advice.warnings),
        f"The gate passes {', '.join(passed) or ('nothing' if served else 'no level')}.",
        *([f"It is not decided about {listed(undecided)}."] if undecided else []),
        *(f"Next: {step}" for step in steps),
    ):
        output.print(line, markup=False)


def _tokens_per_second(evaluation: Evaluation) -> str:
    """Return the speed of generation with half the spread of the runs: 28.1±0.4."""
    half = evaluation.generation_tok_s_spread
    spread = "" if half is None else f"±{number(half, 1)}"
    return f"{number(evaluation.generation_tok_s, 1)}{spread}"
