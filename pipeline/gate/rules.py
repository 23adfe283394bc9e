"""Whether a level may be shipped: `report.gate`'s limits against what `evaluate` and `parity` measured. Values in, verdict out.

A rule whose limit is null is off and leaves no finding. What was not measured is never passed. Where it is missing though it should be there, it
refuses: divergence always is; task, stops and general ability are where the 16-bit model has them. Where nobody asked for it (`scorers: []`,
`general: none`), the finding says "not measured" and refuses nothing, since divergence was measured then.
Task and general ability are compared pairwise on the same questions: a drop refuses where its whole 95 % interval is above the limit and chance
would hardly make it (p below 0.05).

    quench ship Q4_K_M
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config.levels import level_key
from pipeline.config.sections import AUTO, UNTUNED, Gate, reference_of
from pipeline.metrics.level_limits import level_limit
from pipeline.pages.formats import p_value

REFERENCES = ("F16", "BF16")
CHANCE = 0.05  # a difference whose p is not below it may be chance
UNSCORED = 0.05  # share of the reference's scored answers that a level's may lack, since a judge or a time limit may miss one
Evaluation = Mapping[str, Any]
Answers = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Finding:
    """One rule: its figure against its limit (None: there is none), and a sentence that says both. "fail" without a figure: it is missing."""

    rule: str
    title: str
    figure: float | None
    limit: float | None
    verdict: Literal["pass", "fail", "not measured"]
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """What the gate says of one model, finding by finding."""

    model: str
    verdict: Literal["pass", "fail"]
    findings: tuple[Finding, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences of what refuses."""
        return tuple(finding.sentence for finding in self.findings if finding.verdict == "fail")


def judge_level(model: str, evaluations: Mapping[str, Evaluation], answers: Answers, parity: Mapping[str, Any], limits: Gate, seed: int) -> Verdict:
    """Judge a model of `evaluations` (reports/eval/MODEL.json by model) with its answers and reports/parity.json.

    It is compared with the 16-bit model that its divergence was measured from; its general ability with the untuned base's at 16 bit. `seed` draws
    the bootstrap's samples.
    """
    found, sixteen = evaluations[model], _sixteen(model, evaluations)
    against = reference_of(model, sixteen)
    findings = [_seams(model, sixteen, parity)]
    if (said := found.get("reference")) != against:
        sentence = f"{model}'s report compares it with {said or 'nothing'}, not with {against}: run `python -m pipeline evaluate@{model}` again."
        findings.append(Finding("reference", "Reference", None, None, "fail", sentence))
    allowed = level_limit(model.removeprefix(UNTUNED), figure_of(found, "parameters"))
    if limits.max_kld is not None:
        findings.append(_divergence(model, found, against, *in_force(limits.max_kld, allowed.kld, allowed.source)))
    if limits.min_same_top is not None:
        findings.append(_same_top(model, found, against, *in_force(limits.min_same_top, allowed.same_top, allowed.source)))
    if limits.max_task_drop is not None:
        findings.append(task_drop(model, against, evaluations, answers, limits.max_task_drop, seed))
    if limits.min_stopped is not None:
        findings.append(stopped(model, found, evaluations.get(against, found), limits.min_stopped))
    if limits.max_forgetting is not None:
        findings.append(forgetting(model, found, f"{UNTUNED}{sixteen}", evaluations, limits.max_forgetting, seed))
    return Verdict(model, "fail" if any(finding.verdict == "fail" for finding in findings) else "pass", tuple(findings))


def _sixteen(model: str, evaluations: Mapping[str, Evaluation]) -> str:
    """The name of the tuned 16-bit model: what was evaluated, else what the model's own report was compared with."""
    compared = str(evaluations[model].get("reference", REFERENCES[0])).removeprefix(UNTUNED)
    return next((name for name in REFERENCES if name in evaluations), compared)


def _seams(model: str, sixteen: str, parity: Mapping[str, Any]) -> Finding:
    own = "weights_gguf" if model == sixteen else level_key("weights", model)
    return seams_hold(parity, {} if model.startswith(UNTUNED) else {own: f"the weights of {model}"})


def seams_hold(parity: Mapping[str, Any], needed: Mapping[str, str]) -> Finding:
    """Whether no seam failed, and each that is `needed` (its key, and what it measures) was measured."""
    title, seams = "Seams", parity["seams"]
    failed = [seam["title"] for seam in seams.values() if seam["verdict"] == "fail"]
    if failed:
        sentence = f"{len(failed)} of {len(seams)} seams failed, none may: {', '.join(failed)} (`quench parity` names the cause)."
        return Finding("parity", title, float(len(failed)), 0.0, "fail", sentence)
    if parity["verdict"] != "pass":
        return Finding("parity", title, None, 0.0, "fail", f"Parity's verdict is {parity['verdict']!r}, not pass: run `snakemake --force parity`.")
    lacking = [what for key, what in needed.items() if seams.get(key, {}).get("verdict") != "pass"]
    if lacking:
        tried = [seams[key]["detail"] for key in needed if seams.get(key, {}).get("verdict") == "not measured" and seams[key].get("detail")]
        remedy = f"{'; '.join(tried)}." if tried else "run `snakemake parity`."
        return Finding("parity", title, None, 0.0, "fail", f"Parity has not measured {' and '.join(lacking)}: {remedy}")
    measured = sum(seam["verdict"] == "pass" for seam in seams.values())
    return Finding("parity", title, 0.0, 0.0, "pass", f"{measured} of {len(seams)} seams were measured, and none failed.")


def in_force(given: float | Literal["auto"], automatic: float, source: str) -> tuple[float, str]:
    """The limit that applies, and in brackets where it comes from if it is auto."""
    return (automatic, f" (auto: {source})") if given == AUTO else (given, "")


# the worse of the assistant's tokens and all: answers known by heart survive damage that the rest of the text shows
def _divergence(model: str, found: Evaluation, against: str, limit: float, why: str) -> Finding:
    answers, everywhere, title = figure_of(found, "kld_mean"), figure_of(found.get("all_tokens"), "kld_mean"), "Divergence"
    if answers is None or everywhere is None:
        return missing("kld", title, limit, f"{model}'s divergence from {against} is not in its report", f"evaluate@{model}")
    figure = max(answers, everywhere)
    where = f" over all tokens, {answers:.4f} at the assistant's" if everywhere > answers else ""
    sentence = f"{model}'s mean KL divergence from {against} is {figure:.4f} nats{where}; at most {limit:g} are allowed{why}."
    return Finding("kld", title, figure, limit, "pass" if figure <= limit else "fail", sentence)


def _same_top(model: str, found: Evaluation, against: str, limit: float, why: str) -> Finding:
    answers, everywhere, title = figure_of(found, "same_top"), figure_of(found.get("all_tokens"), "same_top"), "Same first choice"
    if answers is None or everywhere is None or max(answers, everywhere) > 1:
        return missing("same_top", title, limit, f"how often {model} ranks {against}'s token first is not in its report", f"evaluate@{model}")
    figure = min(answers, everywhere)
    where = f"all positions, {share_text(answers)} of the assistant's" if everywhere < answers else "the positions"
    sentence = f"{model} ranks {against}'s token first at {share_text(figure)} of {where}; at least {share_text(limit)} are wanted{why}."
    return Finding("same_top", title, figure, limit, "pass" if figure >= limit else "fail", sentence)


def task_drop(model: str, against: str, evaluations: Mapping[str, Evaluation], answers: Answers, limit: float, seed: int) -> Finding:
    rule, title = "task_drop", "Task"
    if model == against:
        return Finding(rule, title, 0.0, limit, "pass", f"{model} is the model that the levels are compared with.")
    mine, theirs = (bool((evaluations.get(name) or {}).get("task")) for name in (model, against))
    if mine != theirs:
        return missing(rule, title, limit, f"only one of {model} and {against} has a task score", f"evaluate@{against if mine else model}")
    if not mine:
        return Finding(rule, title, None, limit, "not measured", f"The task drop of {model} was not measured: evaluate.scorers is empty.")
    if (spelt := evaluations[model]["task"].get("scorer")) != (other := evaluations[against]["task"].get("scorer")):
        return missing(rule, title, limit, f"{model} is scored by {spelt} and {against} by {other}", f"evaluate@{model}")
    if not (answers.get(against) and _ids(answers, model) == _ids(answers, against)):
        return missing(rule, title, limit, f"{model} and {against} answered other questions, so they can't be compared", f"evaluate@{model}")
    scores = paired_scores(answers, against, model)
    scored = sum(row["score"] is not None for row in answers[against])
    if scores is None or len(scores[0]) < (1 - UNSCORED) * scored:
        compared = len(scores[0]) if scores else 0
        what = f"only {compared} of {model}'s answers have a score where {scored} of {against}'s have one"
        return missing(rule, title, limit, what, f"evaluate@{model}")
    return _drop(rule, title, f"{model} scores", *scores, against, limit, seed)


def stopped(model: str, found: Evaluation, reference: Evaluation, limit: float) -> Finding:
    rule, title, task = "stopped", "Ends its answers", found.get("task") or {}
    figure = task.get("stopped")
    if figure is None and (reference.get("task") or task):
        return missing(rule, title, limit, f"how many answers {model} ends by itself is not in its report", f"evaluate@{model}")
    if figure is None:
        return Finding(rule, title, None, limit, "not measured", f"Whether {model} ends its answers was not measured: evaluate.scorers is empty.")
    remedy = (
        "" if figure >= limit else " Where right answers are longer than evaluate.max_new_tokens, raise that; else the end of turn was not learnt."
    )
    sentence = f"{model} ends {share_text(figure)} of its {task['rows']} answers by itself; at least {share_text(limit)} are wanted.{remedy}"
    return Finding(rule, title, figure, limit, "fail" if remedy else "pass", sentence)


def forgetting(model: str, found: Evaluation, base: str, evaluations: Mapping[str, Evaluation], limit: float, seed: int) -> Finding:
    rule, title = "forgetting", "General ability"
    if base not in evaluations:
        return Finding(rule, title, None, limit, "not measured", f"What {model} forgot was not measured: evaluate.models does not name {base}.")
    before, after = evaluations[base].get("general"), found.get("general")
    if not before and not after:
        return Finding(rule, title, None, limit, "not measured", f"What {model} forgot was not measured: evaluate.general is none.")
    if not before or not after:
        return missing(rule, title, limit, f"only one of {model} and {base} has a general ability", f"evaluate@{base if after else model}")
    if (before["file"], before.get("sha256"), len(before["right"])) != (after["file"], after.get("sha256"), len(after["right"])):
        return missing(rule, title, limit, f"{model} and {base} answered other general questions, so they can't be compared", f"evaluate@{model}")
    return _drop(rule, title, f"{model} answers general questions", before["right"], after["right"], base, limit, seed)


def paired_scores(answers: Answers, first: str, second: str) -> tuple[list[float], list[float]] | None:
    """Both models' scores, from 0 to 1, on the questions that both were scored on, in order; None where they answered other questions."""
    if _ids(answers, first) != _ids(answers, second):
        return None
    both = zip(answers.get(first) or (), answers.get(second) or (), strict=True)
    pairs = [(one["score"], two["score"]) for one, two in both if one["score"] is not None and two["score"] is not None]
    return ([one for one, _ in pairs], [two for _, two in pairs]) if pairs else None


def _ids(answers: Answers, model: str) -> list[str]:
    return [row["id"] for row in answers.get(model) or ()]


def figure_of(of: Evaluation | None, key: str) -> float | None:
    """A figure that measures something: finite and not negative; None where it is not there."""
    value = (of or {}).get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0 else None


def _drop(rule: str, title: str, subject: str, before: Sequence[float], after: Sequence[float], against: str, limit: float, seed: int) -> Finding:
    """A paired comparison in points of 100: refused where the whole 95 % interval of the drop is above `limit`, and p below `CHANCE`.

    That the drop itself is above and differs from 0 is not enough: of ten random halves of a good level's 64 answers, one would be refused.
    Nor is the interval: of five rows or fewer it is too narrow, and no p of theirs is below.
    """
    from pipeline.metrics.paired import compare_scores

    difference = compare_scores(before, after, seed)
    drop, certain = -difference.points, -difference.high > limit and difference.p_value < CHANCE
    direction = "below" if drop > 0 else "above"
    noise = f"95 % interval {difference.low:+.1f} to {difference.high:+.1f}, {p_value(difference.p_value)}, {len(before)} questions"
    within = "" if certain or drop <= limit else "; it may be within the limit, more questions would tell"
    sentence = f"{subject} {abs(drop):.1f} points {direction} {against} ({noise}){within}; at most {limit:g} below are allowed."
    return Finding(rule, title, drop, limit, "fail" if certain else "pass", sentence)


def share_text(share: float) -> str:
    """As many digits as tell a figure from its limit: 84.98% is below 85%."""
    return f"{share * 100:.6g}%"


def missing(rule: str, title: str, limit: float, what: str, stage: str) -> Finding:
    """What should have been measured and was not refuses."""
    return Finding(rule, title, None, limit, "fail", f"{what[0].upper()}{what[1:]}, which refuses: run `python -m pipeline {stage}` again.")
