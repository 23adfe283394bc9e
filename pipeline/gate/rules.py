"""Whether a model may be shipped: `report.gate`'s limits against what `evaluate` and `parity` measured.
Values in, checks out.

A rule whose limit is null is off and leaves no check. What was not measured never passes. If it should have
been measured, it fails: divergence always should; task, stops and general ability if the model that it is
compared with has them. If nobody asked for it (`scorers: []`, `general: none`), the check says "not measured"
and refuses nothing, since divergence was measured then. The same rules hold for all graphs
(`pipeline.gate.comparison`).

    quench ship Q4_K_M
"""

from collections.abc import Mapping
from typing import Any, Literal

from pipeline.config.methods import METHODS
from pipeline.config.sections import AUTO, Gate
from pipeline.core.checks import Check
from pipeline.gate.comparison import (
    Comparison,
    Evaluation,
    Evaluations,
    FromTrained,
    Measured,
    comparison,
    share_text,
)
from pipeline.gate.drops import Answers, forgetting, task_drop
from pipeline.gate.judgment import Judgment, check, missing


def judge(
    model: str,
    evaluations: Evaluations,
    answers: Answers,
    parity: Mapping[str, Any],
    limits: Gate,
    seed: int,
    train: Mapping[str, Any] | None = None,
) -> Judgment:
    """Judge a model of `evaluations` (reports/eval/MODEL.json by model) with its answers, reports/parity.json
    and reports/train.json.

    `seed` draws the bootstrap's samples.
    """
    found, compared = evaluations[model], comparison(model, evaluations, parity)
    reference, allowed = evaluations.get(compared.against, found), compared.allowed
    kld, same_top, drop = limits.max_kld, limits.min_same_top, limits.max_task_drop
    stopped, forgotten = limits.min_stopped, limits.max_forgetting
    checks = (
        _parity(parity, compared.needed),
        check("reference", "fail", compared.fault) if compared.fault else None,
        None if kld is None else _divergence("kld", compared.kld, kld, allowed.kld, compared),
        None
        if same_top is None
        else _divergence("same_top", compared.same_top, same_top, allowed.same_top, compared),
        _trained(compared.trained, limits.max_kld_trained),
        None if drop is None else task_drop(model, compared.against, evaluations, answers, drop, seed),
        None if stopped is None else _stopped(model, found, reference, stopped, compared.ends),
        None
        if forgotten is None
        else forgetting(model, found, compared.untuned, evaluations, forgotten, seed),
        _preferences(train or {}, limits.min_preference_accuracy),
    )
    return Judgment(model, tuple(one for one in checks if one))


def _preferences(train: Mapping[str, Any], limit: float | None) -> Check | None:
    """Whether training tells held-out pairs (KTO: answers) right; nothing where it compared none."""
    if limit is None or not METHODS[train.get("method", "sft")].preferences:
        return None
    told = train.get("preferences")
    if told is None:
        sentence = "No held-out pair says whether preferences were learned: raise curate.val_fraction."
        return check("preferences", "not measured", sentence, None, limit)
    sentence = (
        f"Training tells {share_text(told['accuracy'])} of {told['items']} held-out pairs or answers right "
        f"({share_text(told['low'])} to {share_text(told['high'])}); at least {share_text(limit)} are wanted."
    )
    return check("preferences", told["high"] >= limit, sentence, told["accuracy"], limit)


def _parity(parity: Mapping[str, Any], needed: Mapping[str, str]) -> Check:
    """Whether no parity check failed, and each that is `needed` (its key, and what it measures) passed."""
    checks = parity["checks"]
    failed = [check["title"] for check in checks.values() if check["verdict"] == "fail"]
    lacking = [key for key in needed if checks.get(key, {}).get("verdict") != "pass"]
    if failed:
        sentence = (
            f"{len(failed)} of {len(checks)} parity checks failed, none may: {', '.join(failed)} (`quench "
            "model parity` names the cause)."
        )
    elif parity["verdict"] != "pass":
        sentence = f"Parity's verdict is {parity['verdict']!r}, not pass: run `snakemake --force parity`."
    elif lacking:
        details = [checks[key]["detail"] for key in lacking if checks.get(key, {}).get("detail")]
        remedy = f"{'; '.join(details)}." if details else "run `snakemake parity`."
        sentence = f"Parity has not measured {' and '.join(needed[key] for key in lacking)}: {remedy}"
    else:
        measured = sum(check["verdict"] in ("pass", "warn") for check in checks.values())
        sentence = f"{measured} of {len(checks)} parity checks were measured, and none failed."
        return check("parity", "pass", sentence, 0.0, 0.0)
    return check("parity", "fail", sentence, float(len(failed)) or None, 0.0)


def _divergence(
    rule: str, measured: Measured, given: float | Literal["auto"], automatic: float, compared: Comparison
) -> Check:
    limit, why = (automatic, f" (auto: {compared.allowed.source})") if given == AUTO else (given, "")
    figure = measured.figure
    if figure is None:
        return missing(rule, limit, measured.words, compared.stage)
    passes, bound = (
        (figure <= limit, f"at most {limit:g} are allowed")
        if rule == "kld"
        else (figure >= limit, f"at least {share_text(limit)} are wanted")
    )
    return check(rule, passes, f"{measured.words}; {bound}{why}.", figure, limit)


def _trained(trained: FromTrained | None, given: float | Literal["auto"] | None) -> Check | None:
    """How far the merged model is from the trained one; no rounding of its level is in that."""
    if trained is None or given is None:
        return None
    limit, why = (trained.allowed.kld, f" (auto: {trained.allowed.source})") if given == AUTO else (given, "")
    figure, words = trained.kld.figure, trained.kld.words
    if figure is None:
        return check("trained", "not measured", f"{words}.", None, limit)
    return check("trained", figure <= limit, f"{words}; at most {limit:g} are allowed{why}.", figure, limit)


def _stopped(
    model: str, found: Evaluation, reference: Evaluation, limit: float, ends: Mapping[str, Any] | None
) -> Check:
    rule, task = "stopped", found.get("task") or {}
    figure = task.get("stopped")
    if not task and ends is not None:
        # parity asks few questions, but an adapter that never ends a turn must not pass
        detail, passes = ends.get("detail") or "parity has not measured it", ends.get("verdict") == "pass"
        sentence = (
            f"Nothing says that {model} ends its answers ({detail}): set evaluate.scorers, or train longer."
        )
        return check(rule, passes, f"Parity's questions: {detail}." if passes else sentence)
    if figure is None and (reference.get("task") or task):
        return missing(
            rule, limit, f"how many answers {model} ends by itself is not in its report", f"evaluate@{model}"
        )
    if figure is None:
        return check(
            rule,
            "not measured",
            f"Whether {model} ends its answers was not measured: evaluate.scorers is empty.",
            None,
            limit,
        )
    sentence = (
        f"{model} ends {share_text(figure)} of its {task['rows']} answers by itself; "
        f"at least {share_text(limit)} are wanted."
    )
    if figure < limit:
        sentence += (
            " Where right answers are longer than evaluate.max_new_tokens, raise that; else the end of turn "
            "was not learned."
        )
    return check(rule, figure >= limit, sentence, figure, limit)
