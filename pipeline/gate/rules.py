"""Whether a model may be shipped: `report.gate`'s limits against what `evaluate` and `parity` measured. Values in, checks out.

A rule whose limit is null is off and leaves no check. What was not measured never passes. If it should have been measured, it fails:
divergence always should; task, stops and general ability if the model that it is compared with has them. If nobody asked for it
(`scorers: []`, `general: none`), the check says "not measured" and refuses nothing, since divergence was measured then.
Task and general ability are compared pairwise on the same questions: a drop refuses if its entire 95 % interval is above the limit
and chance would hardly make it (p below 0.05). The same rules hold for both graphs (`pipeline.gate.comparison`).

    quench ship Q4_K_M
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config.sections import AUTO, Gate
from pipeline.core.checks import Check, overall
from pipeline.gate.comparison import Comparison, Evaluation, Evaluations, Measured, comparison, share_text
from pipeline.pages.formats import p_value

CHANCE = 0.05  # a difference whose p is not below it may be chance
UNSCORED = 0.05  # share of the reference's scored answers that a level's may lack, since a judge or a time limit may miss one
TITLES = {
    "parity": "Seams", "reference": "Reference", "kld": "Divergence", "same_top": "Same first choice", "task_drop": "Task",
    "stopped": "Ends its answers", "forgetting": "General ability",
}  # fmt: skip
RECORD = {
    "rule": "key",
    "title": "name",
    "figure": "figure",
    "limit": "limit",
    "verdict": "verdict",
    "sentence": "sentence",
}
Answers = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Judgment:
    """What the gate says of one model: a check for each rule that is on, called by the rule (`key`)."""

    model: str
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Literal["pass", "fail"]:
        """One check that fails refuses the model."""
        return overall(self.checks)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences of what refuses."""
        return tuple(check.sentence for check in self.checks if check.verdict == "fail")

    def record(self) -> dict[str, Any]:
        """As JSON: a bundle's evidence/gate.json."""
        return {
            "model": self.model,
            "verdict": self.verdict,
            "findings": [check.record(RECORD) for check in self.checks],
        }


def judge(
    model: str, evaluations: Evaluations, answers: Answers, parity: Mapping[str, Any], limits: Gate, seed: int
) -> Judgment:
    """Judge a model of `evaluations` (reports/eval/MODEL.json by model) with its answers and reports/parity.json.

    `seed` draws the bootstrap's samples.
    """
    found, compared = evaluations[model], comparison(model, evaluations, parity)
    kld, same_top, drop, stopped, forgotten = (
        limits.max_kld, limits.min_same_top, limits.max_task_drop, limits.min_stopped, limits.max_forgetting,
    )  # fmt: skip
    reference = evaluations.get(compared.against, found)
    checks = (
        _parity(parity, compared.needed),
        _check("reference", "fail", compared.fault) if compared.fault else None,
        None if kld is None else _divergence("kld", compared.kld, kld, compared.allowed.kld, compared),
        None
        if same_top is None
        else _divergence("same_top", compared.same_top, same_top, compared.allowed.same_top, compared),
        None if drop is None else _task_drop(model, compared.against, evaluations, answers, drop, seed),
        None if stopped is None else _stopped(model, found, reference, stopped, compared.ends),
        None
        if forgotten is None
        else _forgetting(model, found, compared.untuned, evaluations, forgotten, seed),
    )
    return Judgment(model, tuple(check for check in checks if check))


def _parity(parity: Mapping[str, Any], needed: Mapping[str, str]) -> Check:
    """Whether no parity check failed, and each that is `needed` (its key, and what it measures) passed."""
    seams = parity["seams"]
    failed = [seam["title"] for seam in seams.values() if seam["verdict"] == "fail"]
    if failed:
        sentence = f"{len(failed)} of {len(seams)} seams failed, none may: {', '.join(failed)} (`quench parity` names the cause)."
        return _check("parity", "fail", sentence, float(len(failed)), 0.0)
    if parity["verdict"] != "pass":
        return _check(
            "parity",
            "fail",
            f"Parity's verdict is {parity['verdict']!r}, not pass: run `snakemake --force parity`.",
            None,
            0.0,
        )
    lacking = [what for key, what in needed.items() if seams.get(key, {}).get("verdict") != "pass"]
    if lacking:
        tried = [
            seams[key]["detail"]
            for key in needed
            if seams.get(key, {}).get("verdict") == "not measured" and seams[key].get("detail")
        ]
        remedy = f"{'; '.join(tried)}." if tried else "run `snakemake parity`."
        return _check(
            "parity", "fail", f"Parity has not measured {' and '.join(lacking)}: {remedy}", None, 0.0
        )
    measured = sum(seam["verdict"] == "pass" for seam in seams.values())
    return _check(
        "parity", "pass", f"{measured} of {len(seams)} seams were measured, and none failed.", 0.0, 0.0
    )


def _divergence(
    rule: str, measured: Measured, given: float | Literal["auto"], automatic: float, compared: Comparison
) -> Check:
    limit, why = (automatic, f" (auto: {compared.allowed.source})") if given == AUTO else (given, "")
    if (figure := measured.figure) is None:
        return _missing(rule, limit, measured.words, compared.stage)
    if rule == "kld":
        return _check(
            rule, figure <= limit, f"{measured.words}; at most {limit:g} are allowed{why}.", figure, limit
        )
    return _check(
        rule,
        figure >= limit,
        f"{measured.words}; at least {share_text(limit)} are wanted{why}.",
        figure,
        limit,
    )


def _task_drop(
    model: str, against: str, evaluations: Evaluations, answers: Answers, limit: float, seed: int
) -> Check:
    rule, again = "task_drop", f"evaluate@{model}"
    if model == against:
        return _check(rule, "pass", f"{model} is the model that the levels are compared with.", 0.0, limit)
    mine, theirs = ((evaluations.get(name) or {}).get("task") for name in (model, against))
    if bool(mine) != bool(theirs):
        return _missing(
            rule,
            limit,
            f"only one of {model} and {against} has a task score",
            f"evaluate@{against}" if mine else again,
        )
    if not mine or not theirs:
        return _check(
            rule,
            "not measured",
            f"The task drop of {model} was not measured: evaluate.scorers is empty.",
            None,
            limit,
        )
    if (scorer := mine.get("scorer")) != (other := theirs.get("scorer")):
        return _missing(rule, limit, f"{model} is scored by {scorer} and {against} by {other}", again)
    if not (answers.get(against) and _ids(answers, model) == _ids(answers, against)):
        return _missing(
            rule, limit, f"{model} and {against} answered other questions, so they can't be compared", again
        )
    scores = paired_scores(answers, against, model)
    scored = sum(row["score"] is not None for row in answers[against])
    if scores is None or len(scores[0]) < (1 - UNSCORED) * scored:
        compared = len(scores[0]) if scores else 0
        return _missing(
            rule,
            limit,
            f"only {compared} of {model}'s answers have a score where {scored} of {against}'s have one",
            again,
        )
    return _drop(rule, f"{model} scores", *scores, against, limit, seed)


def _stopped(
    model: str, found: Evaluation, reference: Evaluation, limit: float, ends: Mapping[str, Any] | None
) -> Check:
    rule, task = "stopped", found.get("task") or {}
    if (
        not task and ends is not None
    ):  # parity's few questions: an adapter that never ends a turn must not pass
        detail = ends.get("detail") or "parity has not measured it"
        if ends.get("verdict") == "pass":
            return _check(rule, "pass", f"Parity's questions: {detail}.")
        return _check(
            rule,
            "fail",
            f"Nothing says that {model} ends its answers ({detail}): set evaluate.scorers, or train longer.",
        )
    figure = task.get("stopped")
    if figure is None and (reference.get("task") or task):
        return _missing(
            rule, limit, f"how many answers {model} ends by itself is not in its report", f"evaluate@{model}"
        )
    if figure is None:
        return _check(
            rule,
            "not measured",
            f"Whether {model} ends its answers was not measured: evaluate.scorers is empty.",
            None,
            limit,
        )
    remedy = " Where right answers are longer than evaluate.max_new_tokens, raise that; else the end of turn was not learnt."
    sentence = f"{model} ends {share_text(figure)} of its {task['rows']} answers by itself; at least {share_text(limit)} are wanted."
    return _check(rule, figure >= limit, sentence + (remedy if figure < limit else ""), figure, limit)


def _forgetting(
    model: str, found: Evaluation, base: str, evaluations: Evaluations, limit: float, seed: int
) -> Check:
    rule, unknown = "forgetting", f"What {model} forgot was not measured"
    if base not in evaluations:
        return _check(rule, "not measured", f"{unknown}: evaluate.models does not name {base}.", None, limit)
    before, after = evaluations[base].get("general"), found.get("general")
    if not before and not after:
        return _check(rule, "not measured", f"{unknown}: evaluate.general is none.", None, limit)
    if not before or not after:
        return _missing(
            rule,
            limit,
            f"only one of {model} and {base} has a general ability",
            f"evaluate@{base if after else model}",
        )
    if (before["file"], before.get("sha256"), len(before["right"])) != (
        after["file"],
        after.get("sha256"),
        len(after["right"]),
    ):
        what = f"{model} and {base} answered other general questions, so they can't be compared"
        return _missing(rule, limit, what, f"evaluate@{model}")
    return _drop(
        rule, f"{model} answers general questions", before["right"], after["right"], base, limit, seed
    )


def paired_scores(answers: Answers, first: str, second: str) -> tuple[list[float], list[float]] | None:
    """Both models' scores, from 0 to 1, on the questions that both have a score for, in order; None if they answered other questions."""
    if _ids(answers, first) != _ids(answers, second):
        return None
    both = zip(answers.get(first) or (), answers.get(second) or (), strict=True)
    pairs = [
        (one["score"], two["score"])
        for one, two in both
        if one["score"] is not None and two["score"] is not None
    ]
    return ([one for one, _ in pairs], [two for _, two in pairs]) if pairs else None


def _ids(answers: Answers, model: str) -> list[str]:
    return [row["id"] for row in answers.get(model) or ()]


def _drop(
    rule: str,
    subject: str,
    before: Sequence[float],
    after: Sequence[float],
    against: str,
    limit: float,
    seed: int,
) -> Check:
    """A paired comparison in points of 100: refused if the entire 95 % interval of the drop is above `limit`, and p below `CHANCE`.

    A drop above the limit that differs from 0 is not enough: of ten random halves of a good level's 64 answers, one would be refused.
    The interval alone is not enough: of five rows or fewer it is too narrow, and their p is never below.
    """
    from pipeline.metrics.paired import compare_scores

    difference = compare_scores(before, after, seed)
    drop, certain = -difference.points, -difference.high > limit and difference.p_value < CHANCE
    direction = "below" if drop > 0 else "above"
    noise = f"95 % interval {difference.low:+.1f} to {difference.high:+.1f}, {p_value(difference.p_value)}, {len(before)} questions"
    within = "" if certain or drop <= limit else "; it may be within the limit, more questions would tell"
    sentence = f"{subject} {abs(drop):.1f} points {direction} {against} ({noise}){within}; at most {limit:g} below are allowed."
    return _check(rule, not certain, sentence, drop, limit)


def _missing(rule: str, limit: float, what: str, stage: str) -> Check:
    """What should have been measured and was not refuses."""
    return _check(
        rule,
        "fail",
        f"{what[0].upper()}{what[1:]}, which refuses: run `python -m pipeline {stage}` again.",
        None,
        limit,
    )


def _check(
    rule: str,
    verdict: bool | Literal["pass", "fail", "not measured"],
    sentence: str,
    figure: float | None = None,
    limit: float | None = None,
) -> Check:
    """A rule's check; a `verdict` of True passes."""
    verdict = ("pass" if verdict else "fail") if isinstance(verdict, bool) else verdict
    return Check(TITLES[rule], verdict, sentence, figure=figure, limit=limit, key=rule)
