"""The gate's verdict on every tuned model, and the recommendation among those that it lets pass: one judgement for report, ship and plan."""

from typing import Any

from pipeline.config.sections import ADAPTED, Report, Serve
from pipeline.gate.recommend import Recommendation, is_base, recommend
from pipeline.gate.recommend_adapter import recommend_adapter
from pipeline.gate.records import Inputs
from pipeline.gate.rules import Verdict, judge_level
from pipeline.gate.rules_adapter import judge_adapter


def advise(inputs: Inputs, settings: Report, serve: Serve, seed: int, *, memory_gb: float | None = None) -> tuple[Recommendation, dict[str, Verdict]]:
    """Judge and recommend for `memory_gb` (2³⁰ bytes each; default: report.memory_gb); `seed` draws the bootstrap's samples."""
    judged: Any = (inputs.evaluations, inputs.answers, inputs.parity, settings.gate, seed)
    if ADAPTED in inputs.evaluations:
        verdicts = {ADAPTED: judge_adapter(*judged)}
    else:
        verdicts = {model: judge_level(model, *judged) for model in inputs.evaluations if not is_base(model)}
    choose = recommend_adapter if ADAPTED in inputs.evaluations else recommend
    advice = choose(
        inputs.evaluations, memory_gb=memory_gb or settings.memory_gb, max_task_drop=settings.max_task_drop, serve=serve,
        refused={model: " ".join(verdict.reasons) for model, verdict in verdicts.items() if verdict.verdict == "fail"},
        answers=inputs.answers, seed=seed,
    )  # fmt: skip
    return advice, verdicts
