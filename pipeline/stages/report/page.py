"""The report's page from its templates: which sections there are, and what each of them shows.

`templates/index.html.jinja` has a partial per section in `templates/index/`, called like the section.
Everything that they print is escaped.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.config.sections import BASE, BASE_WITH_ADAPTER, ORIGINAL, TUNED, UNTUNED, served_of
from pipeline.core.usage import Usage
from pipeline.gate.distillation import distillation, is_distillation
from pipeline.gate.distillation import sentence as recovery_sentence
from pipeline.gate.recommend import Recommendation, is_base, reference_name
from pipeline.gate.records import Inputs
from pipeline.metrics.adapter_norms import Norms
from pipeline.metrics.answer_speed import is_disturbed, measure_again
from pipeline.pages.formats import FILTERS
from pipeline.pages.parity_summary import code, counts, grouped
from pipeline.pages.templating import TEMPLATES, fill
from pipeline.stages.report.adapter_section import adapter_values
from pipeline.stages.report.answers_browser import Answers, browser_values
from pipeline.stages.report.budgets_section import budget_values
from pipeline.stages.report.commands import anchor, command_list
from pipeline.stages.report.comparisons import against_base, against_reference, differences_plot, task_scores
from pipeline.stages.report.forgetting import forgetting_values
from pipeline.stages.report.level_table import GROUPS, level_rows
from pipeline.stages.report.merge_section import merge_values
from pipeline.stages.report.quantizing import PARTLY, RECOVERED, WORSE, quantizing_values
from pipeline.stages.report.resources_section import resource_rows
from pipeline.stages.report.strategies_section import strategies_values
from pipeline.stages.report.verdict import headline

if TYPE_CHECKING:
    from pipeline.gate.judgment import Judgment

QUESTIONS_SHOWN = 4  # of the samples that training took
TIMES_SHOWN = 6  # evaluations of which a question's answers are shown


@dataclass(frozen=True)
class Section:
    """One section of the page: its id, which its template is called, its heading, and the commands that made
    its figures.
    """

    name: str
    title: str
    commands: Sequence[str]
    more: str = ""


def render(template: str, **values: Any) -> str:
    """Fill one template of `templates/`; what it prints is escaped."""
    return fill(template, FILTERS | {"anchor": anchor}, **values)


def page_values(
    inputs: Inputs,
    advice: Recommendation,
    verdicts: Mapping[str, "Judgment"],
    seed: int,
    norms: Sequence[Norms] = (),
    used: Mapping[str, Usage] | None = None,
) -> dict[str, Any]:
    """What the templates need beyond the inputs themselves; `seed` draws the bootstrap's samples, `norms` are
    the adapter's, `used` is what stages took.
    """
    from markupsafe import Markup

    from pipeline.stages.report.training_plots import MEASURES, training_plots

    reference, served = reference_name(inputs.evaluations), served_of(inputs.evaluations)
    scores = task_scores(inputs.answers)
    disturbed = [model for model, found in inputs.evaluations.items() if is_disturbed(found)]
    curves = training_plots(inputs.log, inputs.metrics_log, inputs.train.get("eval_loss"))
    values = compared_values(inputs, advice, scores, reference, seed) | {
        "inputs": inputs,
        "advice": advice,
        "verdicts": verdicts,
        "untuned": UNTUNED,
        "title": headline(inputs.parity, advice, verdicts),
        "chosen": inputs.evaluations.get(advice.model or ""),
        "groups": GROUPS,
        "rows": level_rows(inputs.evaluations, verdicts, advice),
        "curves": curves,
        "measures": [(name, title, words) for name, (title, _, words) in MEASURES.items() if name in curves],
        "domains": domain_rows(inputs.evaluations, inputs.answers),
        "unmerged": served is not None,
        "scales": served == TUNED,
        "served": served,
        "BASE": BASE,
        "ORIGINAL": ORIGINAL,
        "lora": (inputs.evaluations.get(BASE_WITH_ADAPTER) or {}).get("lora"),
        "distillation": distillation(inputs.evaluations, seed),
        "distills": is_distillation(inputs.evaluations),
        "recovery_sentence": recovery_sentence,
        "quantizing": None if served else quantizing_values(inputs.evaluations, scores, reference, seed),
        "budgets": [budget_values(found, inputs.evaluations) for found in inputs.budgets],
        "thresholds": {"RECOVERED": RECOVERED, "PARTLY": PARTLY, "WORSE": WORSE},
        "forgetting": forgetting_values(inputs.evaluations, seed),
        "browser": browser_values(inputs.answers),
        "disturbed": disturbed,
        "measure_again": measure_again(disturbed),
        "questions": samples_over_time(inputs.metrics_log),
        "strategies": strategies_values(inputs.strategies) if inputs.strategies else None,
        "merged": merge_values(inputs.merge, inputs.parity, inputs.evaluations, reference)
        if inputs.merge
        else None,
        "adapter": adapter_values(norms),
        "check_groups": grouped(inputs.parity["checks"]),
        "check_counts": counts(inputs.parity["checks"]),
        "code": code,
        "base_files": sorted(inputs.base["files"].items()),
        "commands": command_list(inputs.evaluations),
        "resources": resource_rows(used or {}),
    }
    script = (TEMPLATES / "index.js").read_text(encoding="utf-8")
    return values | {
        "sections": sections(values),
        "script": Markup(script),  # noqa: S704 (our own)
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }


def compared_values(
    inputs: Inputs,
    advice: Recommendation,
    scores: Mapping[str, Sequence[float | None]],
    reference: str,
    seed: int,
) -> dict[str, Any]:
    """Models against each other: each level against its reference, each tuned model against its base."""
    from pipeline.stages.report.quality_plot import quality_plot

    served = served_of(inputs.evaluations)
    levels, gains = against_reference(scores, reference, seed), against_base(scores, seed)
    return {
        "against": {one.second: one for one in levels},
        "gained": {one.second: one for one in gains},
        "quality": quality_plot(inputs.evaluations, advice.model),
        "levels_drawn": differences_plot(
            levels if served else [one for one in levels if not is_base(one.second)],
            "levels-drawn",
            f"Against {ORIGINAL}" if served else "Levels against the 16-bit model",
        ),
        "gains_drawn": differences_plot(
            gains,
            "gains-drawn",
            f"The {'tuned file' if served == TUNED else 'adapter'} against the base alone"
            if served
            else "Tuned models against the untuned base at the same level",
        ),
    }


def sections(values: Mapping[str, Any]) -> list[Section]:
    """The page's sections in their order; one that has nothing to say is left out."""
    inputs, evaluate = values["inputs"], [f"evaluate@{model}" for model in values["inputs"].evaluations]
    each = "; each model's figures by its own `evaluate`, linked from its name"
    unmerged = values["unmerged"]
    found = [
        Section("levels", "Models" if unmerged else "Levels", ["report"], each),
        Section("gate", "The gate", ["parity", "report"], each),
        Section("task", "Task quality", ["report"], each),
        Section("quantizing", "What quantizing costs, and what recovers it", ["report"], each)
        if not unmerged
        else None,
        Section("budgets", "Levels made to measure", [f"budget@{one['budget']}" for one in values["budgets"]])
        if values["budgets"]
        else None,
        Section("distillation", "Distillation", ["report"], each) if values["distills"] else None,
        Section("general", "General ability: what was forgotten", ["report"], each),
        Section("harness", "lm-evaluation-harness", evaluate)
        if any(one.get("harness") for one in inputs.evaluations.values())
        else None,
        Section("answers", "Answers side by side", evaluate) if values["browser"] else None,
        Section("speed", "Speed and memory", evaluate),
        Section("training", "Training", ["train"]),
        Section("checks", "Parity checks", ["parity"]),
        Section("data", "Data", ["curate", "preprocess"]),
        Section("strategies", "Strategies to ship", ["compare"]) if values["strategies"] else None,
        Section("merge", "Merge", ["merge", "parity"]) if values["merged"] else None,
        Section("adapter", "The adapter", ["train", "report"]) if values["adapter"] else None,
        Section("serve", "Serve it", ["report"]),
        Section("lineage", "Lineage", ["base"], each),
        Section("resources", "What the stages took", ["report"], "; what was seen, by each stage itself"),
        Section("commands", "Commands", []),
    ]
    return [section for section in found if section]


def domain_rows(
    evaluations: Mapping[str, Mapping[str, Any]], answers: Answers
) -> list[tuple[str, dict[str, Any]]]:
    """(domain, that domain's scores by model, with the rows that have one), the largest domain first; empty
    where no domain was recorded.
    """
    scored = {
        model: Counter(row.get("domain") for row in rows if row.get("score") is not None)
        for model, rows in answers.items()
    }
    by_model = {
        model: {
            domain: one | {"measured": scored[model][domain]}
            for domain, one in ((found.get("task") or {}).get("domains") or {}).items()
        }
        for model, found in evaluations.items()
    }
    rows = {domain: found["rows"] for domains in by_model.values() for domain, found in domains.items()}
    return [
        (domain, {model: domains.get(domain) for model, domains in by_model.items() if domains})
        for domain in sorted(rows, key=lambda domain: (-rows[domain], domain))
    ]


def samples_over_time(metrics_log: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The held-out questions that training answered at each evaluation: {"prompt", "reference", "answers":
    [{"step", "text", "right"}]}.

    Of many evaluations the first, the last and some evenly in between.
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
            "prompt": asked["prompt"],
            "reference": asked["reference"],
            "answers": [
                {
                    "step": row["step"],
                    "text": row["samples"][number]["answer"],
                    "right": row["samples"][number]["answer"] == asked["reference"],
                }
                for row in chosen
            ],
        }
        for number, asked in enumerate(chosen[0]["samples"][:QUESTIONS_SHOWN])  # the same questions each time
    ]
