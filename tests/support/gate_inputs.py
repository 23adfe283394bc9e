"""A level beside its 16-bit model and its base, as `evaluate` would report them, for the gate to judge."""

from collections.abc import Mapping
from typing import Any

from parity_inputs import parity_report

from pipeline.config.sections import Gate
from pipeline.core.checks import Check
from pipeline.gate.evaluations import ANSWERS, Evaluation
from pipeline.gate.records import Parity, Train
from pipeline.gate.scores import Evidence
from pipeline.gate.verdict import Judgment
from pipeline.gate.verdict import judge as judge_model

LIMITS = Gate(max_kld=0.5, max_task_drop=10.0, min_stopped=0.9, max_forgetting=10.0)
ROWS = 40
PLAIN: dict[str, Any] = {  # of every report, where a test names nothing else
    "bytes": 1,
    "file": "model.gguf",
    "sha256": "0" * 64,
    "reference": "F16",
    "tensors": 1,
    "fallback_tensors": 0,
    "bits_per_weight": 4.5,
    "perplexity": None,
    "kld_mean": None,
    "same_top": None,
    "all_tokens": {},
    "ctx_size": 4096,
    "task": None,
}


def evaluations_of(found: Mapping[str, dict[str, Any]]) -> dict[str, Evaluation]:
    """Reports by model, with `PLAIN` for what is left out."""
    return {model: evaluation_of(model, figures) for model, figures in found.items()}


def evaluation_of(model: str, found: dict[str, Any]) -> Evaluation:
    """One report. A score without an interval gets its own."""
    record = PLAIN | {"model": model} | found
    if record["task"] is not None:
        score = record["task"].get("score")
        interval = {"score": None, "score_low": score, "score_high": score}
        record["task"] = {"rows": ROWS, "scorer": "exact_match", "stopped": None} | interval | record["task"]
    return Evaluation.model_validate(record)


def evidence_of(found: Mapping[str, dict[str, Any]], answers: Mapping[str, Any]) -> Evidence:
    """Return what the gate judges by: reports and answers by model."""
    rows = {model: ANSWERS.validate_python(list(some)) for model, some in answers.items()}
    return Evidence(evaluations_of(found), rows)


def evaluation(score: float | None = 0.75, *, right: int | None = 60, **more: Any) -> dict[str, Any]:
    """One report; `right` of 100 general questions are right."""
    general = {"file": "builtin", "rows": 100, "right": [1] * (right or 0) + [0] * (100 - (right or 0))}
    figures = {
        "kld_mean": 0.01,
        "same_top": 0.98,
        "reference": "F16",
        "task": None if score is None else {"rows": ROWS, "score": score, "stopped": 1.0},
        "general": None if right is None else general,
    } | more
    return {"all_tokens": {key: figures[key] for key in ("kld_mean", "same_top")}} | figures


def rows(*scores: float | None) -> list[dict[str, Any]]:
    """Answers with these scores, again and again."""
    return [
        {"id": f"r{number}", "score": score} for number, score in enumerate(scores * (ROWS // len(scores)))
    ]


def judge(
    level: dict[str, Any], limits: Gate = LIMITS, parity: Any = None, model: str = "Q4_K_M", **others: Any
) -> Judgment:
    """The gate on `model`, where `level` is Q4_K_M's report; `others`: evaluations, answers, train."""
    evaluations = {
        "base-F16": evaluation(0.1, reference="F16"),
        "F16": evaluation(kld_mean=0.0, same_top=1.0),
        "Q4_K_M": level,
    } | others.get("evaluations", {})
    answers = {"F16": rows(0.75), "Q4_K_M": rows(0.75)} | others.get("answers", {})
    return judged(model, evaluations, answers, parity or parity_report(), limits, others.get("train"))


def judged(
    model: str,
    evaluations: Mapping[str, dict[str, Any]],
    answers: Mapping[str, Any],
    parity: dict[str, Any],
    limits: Gate,
    train: dict[str, Any] | None = None,
) -> Judgment:
    """The gate on a model of these reports."""
    losses = {"steps": 1, "loss_first": None, "loss_last": None}
    report = None if train is None else Train.model_validate(losses | train)
    return judge_model(
        model, evidence_of(evaluations, answers), Parity.model_validate(parity), limits, report
    )


def finding(verdict: Judgment, rule: str) -> Check:
    """One rule's check."""
    return next(one for one in verdict.checks if one.key == rule)


def failed(verdict: Judgment) -> list[str]:
    """The rules that refuse."""
    return [one.key for one in verdict.checks if one.verdict == "fail"]
