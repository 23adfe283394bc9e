"""The gate's verdict on every tuned model, and the recommendation among those that it lets pass: one judgement for report, ship and plan."""

from pipeline.reporting.inputs import Inputs
from pipeline.reporting.recommend import Recommendation, is_base, recommend
from pipeline.sections import Report, Serve
from pipeline.shipping.gate import Verdict, judge_level


def advise(inputs: Inputs, settings: Report, serve: Serve, seed: int, *, memory_gb: float | None = None) -> tuple[Recommendation, dict[str, Verdict]]:
    """Judge and recommend for `memory_gb` (2³⁰ bytes each; default: report.memory_gb); `seed` draws the bootstrap's samples."""
    verdicts = {
        model: judge_level(model, inputs.evaluations, inputs.answers, inputs.parity, settings.gate, seed)
        for model in inputs.evaluations if not is_base(model)
    }  # fmt: skip
    advice = recommend(
        inputs.evaluations, memory_gb=memory_gb or settings.memory_gb, max_task_drop=settings.max_task_drop, serve=serve,
        refused={model: " ".join(verdict.reasons) for model, verdict in verdicts.items() if verdict.verdict == "fail"},
        answers=inputs.answers, seed=seed,
    )  # fmt: skip
    return advice, verdicts
