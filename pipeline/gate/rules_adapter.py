"""Whether an adapter may be shipped with the GGUF that it was trained on: the gate's rules where nothing is merged and nothing rounded afterwards.

What a level loses by rounding can't be lost here. What is left is llama.cpp's arithmetic against training's own, which parity measures: the
rules of divergence judge that seam. Task and general ability are compared with the base's file alone. What is missing refuses, as it does in
`pipeline.gate.rules`.

    quench ship adapter
"""

from collections.abc import Mapping
from typing import Any

from pipeline.config.sections import ADAPTED, BARE, SOURCE, Gate
from pipeline.gate.rules import (
    Answers,
    Evaluation,
    Finding,
    Verdict,
    figure_of,
    forgetting,
    in_force,
    missing,
    seams_hold,
    share_text,
    stopped,
    task_drop,
)
from pipeline.metrics.level_limits import served_limit

SERVED = "outputs_served"  # the seam that compares training's forward with llama.cpp's
NEEDED = {
    "weights_file": "which file the base is",
    "weights_lora": "the weights of the adapter's GGUF",
    SERVED: "what base and adapter say in llama.cpp",
}


def judge_adapter(evaluations: Mapping[str, Evaluation], answers: Answers, parity: Mapping[str, Any], limits: Gate, seed: int) -> Verdict:
    """Judge the model "adapter" of `evaluations` (reports/eval/MODEL.json by model) with its answers and reports/parity.json.

    `seed` draws the bootstrap's samples.
    """
    found = evaluations[ADAPTED]
    findings = [seams_hold(parity, NEEDED)]
    if (said := found.get("reference")) not in (BARE, SOURCE) or not found.get("lora"):
        sentence = (
            f"The report of {ADAPTED} compares it with {said or 'nothing'} or names no adapter's GGUF: run `python -m pipeline evaluate@{ADAPTED}`."
        )
        findings.append(Finding("reference", "Reference", None, None, "fail", sentence))
    served, allowed = parity["seams"].get(SERVED) or {}, served_limit()
    if limits.max_kld is not None:
        findings.append(served_divergence(served, *in_force(limits.max_kld, allowed.kld, allowed.source)))
    if limits.min_same_top is not None:
        findings.append(served_same_top(served, *in_force(limits.min_same_top, allowed.same_top, allowed.source)))
    if limits.max_task_drop is not None:
        findings.append(task_drop(ADAPTED, BARE, evaluations, answers, limits.max_task_drop, seed))
    if limits.min_stopped is not None:
        findings.append(stopped(ADAPTED, found, evaluations.get(BARE, found), limits.min_stopped) if found.get("task") else ends(parity))
    if limits.max_forgetting is not None:
        findings.append(forgetting(ADAPTED, found, BARE, evaluations, limits.max_forgetting, seed))
    return Verdict(ADAPTED, "fail" if any(finding.verdict == "fail" for finding in findings) else "pass", tuple(findings))


def ends(parity: Mapping[str, Any]) -> Finding:
    """Whether it ends its answers, by parity's few questions where no task is scored: an adapter that never ends a turn must not pass."""
    seam = parity["seams"].get("behaviour_answers_end") or {}
    ended = seam.get("verdict") == "pass"
    said = seam.get("detail") or "parity has not measured it"
    sentence = (
        f"Parity's questions: {said}." if ended else f"Nothing says that {ADAPTED} ends its answers ({said}): set evaluate.scorers, or train longer."
    )
    return Finding("stopped", "Ends its answers", None, None, "pass" if ended else "fail", sentence)


def served_divergence(seam: Mapping[str, Any], limit: float, why: str = "") -> Finding:
    """The mean KL divergence of what is served from what was trained."""
    figure = figure_of(seam, "figure") if seam.get("unit") == "nats" else None
    if figure is None:
        return missing("kld", "Divergence", limit, "how far base and adapter are from the trained model is not in parity's report", "parity")
    sentence = f"Base and adapter in llama.cpp are {figure:.2g} nats (mean KL divergence) from the trained model; at most {limit:g} are allowed{why}."
    return Finding("kld", "Divergence", figure, limit, "pass" if figure <= limit else "fail", sentence)


def served_same_top(seam: Mapping[str, Any], limit: float, why: str = "") -> Finding:
    """How often what is served ranks the same token first as what was trained."""
    title, figure = "Same first choice", figure_of(seam.get("figures"), "same_top")
    if figure is None or figure > 1:
        return missing("same_top", title, limit, "how often llama.cpp ranks the trained model's token first is not in parity's report", "parity")
    sentence = f"Base and adapter in llama.cpp rank the trained model's token first at {share_text(figure)} of the positions; at least "
    return Finding("same_top", title, figure, limit, "pass" if figure >= limit else "fail", f"{sentence}{share_text(limit)} are wanted{why}.")
