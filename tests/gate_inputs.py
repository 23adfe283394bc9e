"""A level beside its 16-bit model and its base, as `evaluate` would report them, for the gate to judge."""

from typing import Any

from parity_inputs import parity_report

from pipeline.config.sections import Gate
from pipeline.core.checks import Check
from pipeline.gate.judgment import Judgment
from pipeline.gate.rules import judge as judge_model

LIMITS = Gate(max_kld=0.5, min_same_top=0.85, max_task_drop=10.0, min_stopped=0.9, max_forgetting=10.0)
ROWS = 40


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
    return judge_model(model, evaluations, answers, parity or parity_report(), limits, 0, others.get("train"))


def finding(verdict: Judgment, rule: str) -> Check:
    """One rule's check."""
    return next(one for one in verdict.checks if one.key == rule)


def failed(verdict: Judgment) -> list[str]:
    """The rules that refuse."""
    return [one.key for one in verdict.checks if one.verdict == "fail"]
