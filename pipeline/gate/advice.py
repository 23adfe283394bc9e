"""The gate's judgment of every tuned model, and the recommendation among those that it passes: the same for
report, ship and plan."""

from pipeline.config.sections import Report, Serve
from pipeline.gate.judgment import Judgment
from pipeline.gate.recommend import Recommendation, is_base, recommend
from pipeline.gate.records import Inputs
from pipeline.gate.rules import judge


def advise(
    inputs: Inputs, settings: Report, serve: Serve, seed: int, *, memory_gb: float | None = None
) -> tuple[Recommendation, dict[str, Judgment]]:
    """Judge and recommend for `memory_gb` (2³⁰ bytes each; default: report.memory_gb); `seed` draws the
    bootstrap's samples."""
    tuned = [model for model in inputs.evaluations if not is_base(model)]
    judged = {
        model: judge(
            model, inputs.evaluations, inputs.answers, inputs.parity, settings.gate, seed, inputs.train
        )
        for model in tuned
    }
    refused = {
        model: " ".join(judgment.reasons) for model, judgment in judged.items() if judgment.verdict == "fail"
    }
    advice = recommend(
        inputs.evaluations,
        memory_gb=memory_gb or settings.memory_gb,
        max_task_drop=settings.max_task_drop,
        serve=serve,
        refused=refused,
        answers=inputs.answers,
        seed=seed,
    )
    return advice, judged
