"""What the report shows, as text: the page, the model card, the Modelfile and the serve command, from templates.

Templates are in `pipeline/reporting/templates/`; those that make HTML escape everything that they print.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape

from pipeline.reporting.recommend import Recommendation, is_base

TEMPLATES = Path(__file__).parent / "templates"
MISSING = "–"
ROWS_SHOWN = 6  # answers side by side
QUESTIONS_SHOWN = 4  # of the samples that training took
TIMES_SHOWN = 6  # evaluations of which a question's answers are shown
MODES = ("pass", "fail", "not measured")


@dataclass(frozen=True)
class Inputs:
    """What the other stages found: their reports as decoded JSON, `log` as rows of train.csv, `journal` as those of train.jsonl.

    Evaluations and answers are by model.
    """

    data: Mapping[str, Any]
    labels: Mapping[str, Any]
    train: Mapping[str, Any]
    log: Sequence[Mapping[str, Any]]
    journal: Sequence[Mapping[str, Any]]
    parity: Mapping[str, Any]
    base: Mapping[str, Any]
    evaluations: Mapping[str, Mapping[str, Any]]
    answers: Mapping[str, Sequence[Mapping[str, Any]]]


def render(template: str, **values: Any) -> str:
    """Fill one template; names that end in .html.jinja are escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        autoescape=select_autoescape(["html.jinja"], default=False),
    )  # fmt: skip
    environment.filters.update(number=number, percent=percent, points=points, size=size, significant=significant, count=count, duration=duration)
    return environment.get_template(template).render(**values)


def page_values(inputs: Inputs, advice: Recommendation) -> dict[str, Any]:
    """What the page's template needs beyond the inputs themselves."""
    from markupsafe import Markup

    from pipeline.reporting.figures import quality_plot, training_plots

    tuned = {name: found for name, found in inputs.evaluations.items() if not is_base(name)}
    return {
        "inputs": inputs,
        "advice": advice,
        "title": headline(inputs.parity, advice),
        "chosen": inputs.evaluations.get(advice.model or ""),
        "chosen_gain": next((gain for gain in advice.gains if gain.model == advice.model), None),
        # our own drawing; names in it are escaped by matplotlib and by figures
        "quality": Markup(quality_plot(tuned, advice.model)),  # noqa: S704
        "curves": {name: Markup(plot) for name, plot in training_plots(inputs.log, inputs.journal, inputs.train.get("eval_loss")).items()},  # noqa: S704
        "questions": samples_over_time(inputs.journal),
        "seams": [{"name": name, **seam} for name, seam in inputs.parity["seams"].items()],
        "seam_counts": seam_counts(inputs.parity),
        "examples": disagreements(inputs.answers)[:ROWS_SHOWN],
        "architecture": ", ".join(inputs.base["architecture"].get("architectures") or [inputs.base["architecture"]["model_type"]]),
        "base_files": sorted(inputs.base["files"].items()),
    }


def headline(parity: Mapping[str, Any], advice: Recommendation) -> str:
    """The verdict in a few words; what stands against serving comes before the level's name."""
    if parity["verdict"] != "pass":
        return "Do not serve: parity failed"
    if advice.model is None:
        return "No level fits"
    if any(gain.model == advice.model and gain.beats is False for gain in advice.gains):
        return f"{advice.model}, but no better than the base"
    return f"Serve {advice.model}"


def seam_counts(parity: Mapping[str, Any]) -> dict[str, int]:
    """How many seams passed, failed and were not measured; a verdict that is none of these counts as not measured."""
    verdicts = [seam.get("verdict") if seam.get("verdict") in MODES else "not measured" for seam in parity["seams"].values()]
    return {verdict: verdicts.count(verdict) for verdict in MODES}


def disagreements(answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The rows on which the tuned models' scores (answers, without scores) differ; rows on which any model differs if those agree throughout.

    Each is {"id", "prompt", "reference", "answers": {model: row}}.
    """
    if not answers:
        return []
    rows = [dict(zip(answers, row, strict=True)) for row in zip(*answers.values(), strict=True)]
    tuned = [row for row in rows if _differ([answer for model, answer in row.items() if not is_base(model)])]
    found = tuned or [row for row in rows if _differ(list(row.values()))]
    asked = [next(iter(row.values())) for row in found]
    return [
        {"id": one["id"], "prompt": _text(one["prompt"]), "reference": _text(one["reference"]), "answers": row}
        for one, row in zip(asked, found, strict=True)
    ]


def samples_over_time(journal: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The held-out questions that training answered at each evaluation: {"prompt", "reference", "answers": [{"step", "text", "right"}]}.

    Of many evaluations the first, the last and some evenly in between.
    """
    evaluations = [row for row in journal if row["kind"] == "eval" and row.get("samples")]
    if not evaluations:
        return []
    chosen = [evaluations[place] for place in sorted({round(part * (len(evaluations) - 1) / (TIMES_SHOWN - 1)) for part in range(TIMES_SHOWN)})]
    found = []
    for number_of, asked in enumerate(chosen[0]["samples"][:QUESTIONS_SHOWN]):  # the same questions each time
        answers = [(row["step"], row["samples"][number_of]["answer"]) for row in chosen]
        right = [{"step": step, "text": text, "right": text == asked["reference"]} for step, text in answers]
        found.append({"prompt": asked["prompt"], "reference": asked["reference"], "answers": right})
    return found


def number(value: Any, digits: int = 2) -> str:
    """12.34; a dash where there is no number."""
    return f"{value:,.{digits}f}" if _is_number(value) else MISSING


def percent(value: Any, digits: int = 1) -> str:
    """A share of 1 as 97.9 %."""
    return f"{value * 100:.{digits}f} %" if _is_number(value) else MISSING


def points(value: Any) -> str:
    """A share of 1 as points of 100: 75.7."""
    return number(value * 100, 1) if _is_number(value) else MISSING


def significant(value: Any) -> str:
    """Three significant digits: 0.00123, 1.2e-07, 98.5; text as it is."""
    return f"{value:.3g}" if _is_number(value) else (value if isinstance(value, str) else MISSING)


def size(value: Any) -> str:
    """Bytes as 105.5 MB or 4.68 GB (decimal units)."""
    if not _is_number(value):
        return MISSING
    return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.1f} MB"


def count(value: Any) -> str:
    """A whole number with thousands marked: 1,770."""
    return f"{value:,.0f}" if _is_number(value) else MISSING


def duration(value: Any) -> str:
    """Seconds as 48 s, 7.7 min or 14.2 h."""
    if not _is_number(value):
        return MISSING
    return f"{value:.0f} s" if value < 100 else f"{value / 60:.1f} min" if value < 6000 else f"{value / 3600:.1f} h"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _differ(rows: Sequence[Mapping[str, Any]]) -> bool:
    key = "score" if all(row.get("score") is not None for row in rows) else "answer"
    return len({row.get(key) for row in rows}) > 1


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
