"""The table of levels, cell by cell: what is shown, what stands small below it, and the value that sorting
goes by.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config.sections import BASE, BASE_WITH_ADAPTER, ORIGINAL, TUNED
from pipeline.core.text import count
from pipeline.gate.comparison import REFERENCES
from pipeline.gate.judgment import Judgment
from pipeline.gate.recommend import Recommendation, is_base
from pipeline.gate.task_scores import scored_rows
from pipeline.metrics.answer_speed import is_disturbed
from pipeline.pages.formats import number, percent, points, size

Found = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """What a cell shows; `value` is None where nothing was measured or holds, which sorts last."""

    value: float | None
    text: str
    small: str = ""


DISTURBED = Cell(None, "disturbed")


@dataclass(frozen=True)
class Column:
    """A column under a group's heading; `cell` reads it from a model's evaluation."""

    title: str
    cell: Callable[[Found], Cell]


def _cell(show: Callable[..., str], key: str, *digits: int, spread: str = "") -> Callable[[Found], Cell]:
    """A column of the figure `key`, with ± the figure `spread` below it."""

    def cell(found: Found) -> Cell:
        value, error = found.get(key), found.get(spread)
        return Cell(value, show(value, *digits), f"± {number(error, *digits)}" if error is not None else "")

    return cell


def _speed(key: str) -> Callable[[Found], Cell]:
    """A column of speeds; a figure that other load spoilt is not shown as one."""
    measured = _cell(number, key, 1, spread=f"{key}_spread")
    return lambda found: DISTURBED if is_disturbed(found) else measured(found)


def _size(found: Found) -> Cell:
    lora = found.get("lora")
    return Cell(
        found.get("bytes"), size(found.get("bytes")), f"{size(lora['bytes'])} of it LoRA" if lora else ""
    )


def _fallback(found: Found) -> Cell:
    return Cell(
        found.get("fallback_tensors"),
        count(found.get("fallback_tensors")),
        f"of {count(found['tensors'])}" if found.get("tensors") else "",
    )


def _memory(found: Found) -> Cell:
    serving = found.get("serving") or {}
    main, card = serving.get("peak_memory_bytes"), serving.get("gpu_memory_bytes")
    return Cell(main, size(main), f"GPU {size(card)}" if card else "")


def _score(found: Found) -> Cell:
    task = found.get("task") or {}
    cell = _scored(task)
    few = (
        f"{measured} of {task['rows']}"
        if cell.small and (measured := scored_rows(task)) < task["rows"]
        else ""
    )
    return replace(cell, small=", ".join(filter(None, (cell.small, few))))


def _of_task(key: str) -> Callable[[Found], Cell]:
    def cell(found: Found) -> Cell:
        value = (found.get("task") or {}).get(key)
        return Cell(value, percent(value, 0))

    return cell


def _scored(figures: Found) -> Cell:
    low, high = figures.get("score_low"), figures.get("score_high")
    return Cell(
        figures.get("score"),
        points(figures.get("score")),
        "" if low is None or high is None else f"{points(low)} to {points(high)}",
    )


def _divergence(show: Callable[..., str], key: str, *digits: int) -> Callable[[Found], Cell]:
    """A column of divergence, with the reference below it where that is no model of the same kind."""

    def cell(found: Found) -> Cell:
        return Cell(
            found.get(key),
            show(found.get(key), *digits),
            f"from {found['reference']}" if across(found) else "",
        )

    return cell


def across(found: Found) -> bool:
    """Whether an untuned model's divergence is from a tuned one: what fine-tuning changed, where its own
    levels' is what rounding did.

    Without a merge every divergence is from another kind of model, and which one is always said.
    """
    if found.get("model") in (BASE_WITH_ADAPTER, TUNED, BASE):
        return found.get("reference") not in (None, found["model"])
    return is_base(found.get("model", "")) and "reference" in found and not is_base(found["reference"])


GROUPS: Mapping[str, Sequence[Column]] = {
    "File": (
        Column("size", _size),
        Column("bits per weight", _cell(number, "bits_per_weight")),
        Column("fallback tensors", _fallback),
    ),
    "Divergence": (
        Column("perplexity", _cell(number, "perplexity", spread="perplexity_error")),
        Column("KLD mean", _divergence(number, "kld_mean", 4)),
        Column("KLD 99.9\u00a0%", _divergence(number, "kld_p999", 3)),
        Column("same top", _divergence(percent, "same_top")),
        Column("RMS Δp", _divergence(percent, "rms_dp")),
    ),
    "Tokens/s": (
        Column("prompt", _speed("prompt_tok_s")),
        Column("generation", _speed("generation_tok_s")),
    ),
    "Served": (Column("peak memory", _memory),),
    "Task": (
        Column("score", _score),
        Column("stopped", _of_task("stopped")),
        Column("refused", _of_task("refused")),
    ),
    "General": (Column("ability", lambda found: _scored(found.get("general") or {})),),
}


def level_rows(
    evaluations: Mapping[str, Found], verdicts: Mapping[str, Judgment], advice: Recommendation
) -> list[dict[str, Any]]:
    """A row per model: {"model", "tag": what it is, "chosen", "gate": its verdict or None, "groups": cells by
    group}.
    """
    return [
        {
            "model": model,
            "tag": tag_of(model, advice),
            "chosen": model == advice.model,
            "gate": verdicts.get(model),
            "groups": {name: [column.cell(found) for column in columns] for name, columns in GROUPS.items()},
        }
        for model, found in evaluations.items()
    ]


def tag_of(model: str, advice: Recommendation) -> str:
    """What a model is, in a word or two."""
    if model == advice.model:
        return "recommended"
    if model in (BASE, ORIGINAL):
        return "base alone" if model == BASE else "original"
    return "untuned base" if is_base(model) else "reference" if model in REFERENCES else ""
