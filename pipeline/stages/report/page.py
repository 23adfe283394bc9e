"""The report's page from its templates: the verdict, the sections, their values, and the commands behind the
figures.

`templates/index.html.jinja` has a partial per section in `templates/index/`, which is named like the section.
Everything that they print is escaped.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config.levels import UNTUNED
from pipeline.config.products import product_of
from pipeline.config.sections import BASE, ORIGINAL
from pipeline.core.usage import Usage
from pipeline.gate.distillation import distillation
from pipeline.gate.evaluations import commonest_line
from pipeline.gate.inputs import Inputs
from pipeline.gate.recommend import Recommendation
from pipeline.gate.rules import SPEEDS
from pipeline.gate.verdict import Judgment
from pipeline.metrics.adapter_norms import Norms
from pipeline.metrics.answer_speed import measure_again
from pipeline.pages.parity_summary import code, counts, grouped
from pipeline.pages.templating import TEMPLATES
from pipeline.stages.report.answers_browser import browser_values
from pipeline.stages.report.calls_section import calls_values
from pipeline.stages.report.comparisons import compared_values, domain_rows, forgetting_values, task_scores
from pipeline.stages.report.front import cost
from pipeline.stages.report.gists import gist
from pipeline.stages.report.labels_section import labels_values
from pipeline.stages.report.level_table import GROUPS, SHORT, level_rows
from pipeline.stages.report.merge_section import adapter_values, merge_values
from pipeline.stages.report.quantizing import PARTLY, RECOVERED, WORSE, quantizing_values
from pipeline.stages.report.strategies_section import strategies_values
from pipeline.workflow.stages import stages_of, table

COMMANDS = {  # description of what each command measures
    "base": "the base model: source, revision, hashes, license",
    "curate": "what became of every row of data/raw",
    "preprocess": "tokens, trained tokens, packing",
    "train": "the adapter, its curves and the run record",
    "merge": "the merge, how far it moved the weights",
    "lora": "the adapter as a GGUF",
    "tuned": "the base's GGUF with the trained scales",
    "compare": "the sum of the comparison of strategies (its jobs: `snakemake -n`)",
    "parity": "the parity checks, and how much each level rounds a weight",
    "report": "this page: the recommendation, the gate, the paired tests (from the answers), the data files",
}
UNMERGED = {"parity": "the parity checks between the trained model and what is served"}
SCALES = {"train": "the scales, its curves and the run record"}


@dataclass(frozen=True)
class Section:
    """One folded section of the page: its id and template's name, its heading, the commands behind its
    figures, and what it says in a few words (`gist`).
    """

    name: str
    title: str
    commands: Sequence[str]
    more: str = ""
    gist: str = ""


def page_values(
    inputs: Inputs,
    advice: Recommendation,
    verdicts: Mapping[str, Judgment],
    norms: Sequence[Norms] = (),
    used: Mapping[str, Usage] | None = None,
) -> dict[str, Any]:
    """Return the template values in addition to the inputs. `norms` are the adapter's, `used` are the stages'
    resources.
    """
    from markupsafe import Markup

    from pipeline.stages.report.training_plots import MEASURES, samples_over_time, training_plots

    evaluations = inputs.evaluations
    checks = inputs.parity.written()["checks"]
    product = product_of(evaluations)
    reference = product.reference(evaluations)
    served = product.served
    scores = task_scores(inputs.answers)
    disturbed = [model for model, evaluation in evaluations.items() if evaluation.is_disturbed]
    curves = training_plots(inputs.log, inputs.metrics_log, inputs.train.eval_loss)
    values = compared_values(evaluations, advice.model, scores, reference) | {
        "inputs": inputs,
        "advice": advice,
        "verdicts": verdicts,
        "untuned": UNTUNED,
        "title": headline(inputs, advice, verdicts),
        "chosen": inputs.evaluations.get(advice.model or ""),
        "groups": GROUPS,
        "short": SHORT,
        "rows": level_rows(inputs.evaluations, verdicts, advice),
        "curves": curves,
        "measures": [(name, title, words) for name, (title, _, words) in MEASURES.items() if name in curves],
        "labels": labels_values(evaluations, inputs.answers),
        "domains": domain_rows(inputs.evaluations, inputs.answers),
        "product": product,
        "served": served,
        "speeds": SPEEDS,
        "BASE": BASE,
        "ORIGINAL": ORIGINAL,
        "lora": evaluations[served].lora if served else None,
        "distillation": distillation(inputs.evaluations),
        "quantizing": None if served else quantizing_values(inputs.evaluations, scores, reference),
        "thresholds": {"RECOVERED": RECOVERED, "PARTLY": PARTLY, "WORSE": WORSE},
        "forgetting": forgetting_values(inputs.evaluations),
        "calls": calls_values(inputs.evaluations, inputs.answers),
        "browser": browser_values(inputs.answers),
        "disturbed": disturbed,
        "measure_again": measure_again(disturbed),
        "questions": samples_over_time(inputs.metrics_log),
        "strategies": strategies_values(inputs.strategies.written()) if inputs.strategies else None,
        "merged": merge_values(inputs.merge, inputs.parity, inputs.evaluations, reference)
        if inputs.merge
        else None,
        "adapter": adapter_values(norms),
        "check_groups": grouped(checks),
        "check_counts": counts(checks),
        "code": code,
        "base_files": sorted(inputs.base.files.items()),
        "commands": command_list(inputs),
        "resources": resource_rows(used or {}),
        "cost": cost(inputs, used or {}),
    }
    script = (TEMPLATES / "index.js").read_text(encoding="utf-8")
    return values | {
        "sections": [replace(one, gist=gist(one.name, values)) for one in sections(values)],
        "script": Markup(script),  # noqa: S704 (our own)
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }


def sections(values: Mapping[str, Any]) -> list[Section]:
    """Return the page's sections in their order, without those that have no content."""
    inputs = values["inputs"]
    evaluate = [f"evaluate@{model}" for model in inputs.evaluations]
    each = "; each model's figures by its own `evaluate`, linked from its name"
    served = values["product"].served
    page_sections = [
        Section("levels", f"All figures of every {'model' if served else 'level'}", ["report"], each),
        Section("gate", "The gate", ["parity", "report"], each),
        Section("task", "Task quality", ["report"], each),
        Section("calls", "Calls of tools", ["report"], each) if values["calls"] else None,
        Section("quantizing", "What quantizing costs, and what recovers it", ["report"], each)
        if not served
        else None,
        Section("distillation", "Distillation", ["report"], each)
        if values["distillation"] is not None
        else None,
        Section("general", "General ability: what was forgotten", ["report"], each),
        Section("harness", "lm-evaluation-harness", evaluate)
        if any(evaluation.harness for evaluation in inputs.evaluations.values())
        else None,
        Section("answers", "Answers side by side", evaluate) if values["browser"] else None,
        Section("speed", "Speed and memory", evaluate),
        Section("training", "Training", ["train"]),
        Section("checks", "Parity checks", ["parity"]),
        Section("data", "Data", ["curate", "preprocess"]),
        Section("strategies", "Strategies to ship", ["compare" if values["strategies"] else "report"])
        if not served
        else None,
        Section("merge", "Merge", ["merge", "parity"]) if values["merged"] else None,
        Section("adapter", "The adapter", ["train", "report"]) if values["adapter"] else None,
        Section("serve", "Serve it", ["report"]),
        Section("lineage", "Lineage", ["base"], each),
        Section("resources", "What the stages took", ["report"], "; what was seen, by each stage itself"),
        Section("commands", "Commands", []),
    ]
    return [section for section in page_sections if section]


def headline(inputs: Inputs, advice: Recommendation, verdicts: Mapping[str, Judgment]) -> str:
    """Return the verdict in a few words. A reason not to ship comes before the level's name."""
    if inputs.parity.verdict != "pass":
        return "Ship nothing: parity failed"
    line = commonest_line(inputs.evaluations)
    if advice.model is None:
        product = product_of(inputs.evaluations)
        refusing = [verdict.refusing for verdict in verdicts.values()]
        if line and refusing and all("commonest" in keys for keys in refusing):
            return f"Ship nothing: not better than {line[0]}"
        if refusing and all(refusing):
            return f"Ship nothing: the gate refuses {product.called}"
        return "The model does not fit" if product.served else "No level fits"
    judgment = verdicts[advice.model]
    if line and not judgment.is_above_commonest:
        return f"{advice.model}, but not measurably better than {line[0]}"
    if any(gain.model == advice.model and gain.beats is False for gain in advice.gains):
        return f"{advice.model}, but no better than the base"
    if advice.below_standard:
        return f"{advice.model}, below the standard"
    if judgment.verdict == "not decided" and judgment.only_speed_is_undecided:
        return f"{advice.model}, but its speed is not decided"
    if judgment.verdict == "not decided":
        return f"{advice.model}, but too few rows to decide"
    return f"Ship {advice.model}"


def with_warnings(advice: Recommendation, inputs: Inputs) -> Recommendation:
    """Return the advice with a first warning if a parity check failed, and a last one on what the recommended
    level forgot.
    """
    failed = [check for check in inputs.parity.checks.values() if check.verdict == "fail"]
    warnings = list(advice.warnings)
    if failed or inputs.parity.verdict != "pass":
        checks = {0: "Parity did not pass", 1: "1 parity check failed"}.get(
            len(failed), f"{len(failed)} parity checks failed"
        )
        warnings.insert(
            0, f"{checks}: do not serve these files before the cause is found (section Parity checks)."
        )
    lost = (forgetting_values(inputs.evaluations) or {"warnings": {}})["warnings"]
    return replace(advice, warnings=(*warnings, *(lost[model] for model in lost if model == advice.model)))


def resource_rows(used: Mapping[str, Usage]) -> list[tuple[str, Usage]]:
    """Return (stage, its last run) in the graph's order, without report: memory, time and disk, planned and
    seen.
    """
    order = {name: place for place, name in enumerate(table().stages)}
    stages = [name for name in used if name.partition("@")[0] in order and name != "report"]
    return [
        (name, used[name]) for name in sorted(stages, key=lambda name: (order[name.partition("@")[0]], name))
    ]


def command_list(inputs: Inputs) -> Mapping[str, str]:
    """Return each command (without `python -m pipeline`) with what it measures, in order, one per model to
    evaluate.
    """
    product = product_of(inputs.evaluations)
    words = dict(COMMANDS)
    if product.served:
        words |= UNMERGED
    if product.graph == "tuned":
        words |= SCALES
    stages = stages_of(product.graph, ["compare"] if inputs.strategies else [])
    commands = {name: stated for name, stated in words.items() if name in stages and name != "report"}
    for model in inputs.evaluations:
        commands[f"evaluate@{model}"] = f"{model}: file, divergence, speed, memory, answers, general ability"
    commands["report"] = words["report"]
    return commands
