"""What NF4 changes in what the model says: logits of the 16-bit base against the NF4 base, both with the adapter."""

from typing import Any

import numpy as np

from pipeline.llamacpp.logits import Floats, divergence, log_softmax, nmse
from pipeline.seams.level_limits import level_limit
from pipeline.seams.seam import Seam

POSITIONS = 32  # last positions of a prompt whose logits are compared: a 152k vocabulary takes 19 MB a prompt
MAX_ERROR, MAX_WORST_ERROR = 0.3, 0.6


def last_logits(model: Any, rows: list[list[int]]) -> list[Floats]:
    """Float32 logits (≤ POSITIONS, V) of the last positions of each row of token ids, in evaluation mode."""
    import torch

    model.eval()
    with torch.no_grad():
        return [_logits(model, torch.tensor([ids], device=model.device)).cpu().numpy() for ids in rows]


def _logits(model: Any, ids: Any) -> Any:
    return model(input_ids=ids, use_cache=False, logits_to_keep=POSITIONS).logits[0].float()


def compare_logits(reference: list[Floats], candidate: list[Floats]) -> dict[str, float]:
    """Over all positions: mean and largest absolute difference, mean and largest relative error of a position, NMSE, mean KL divergence in nats
    and share of the same first choice.

    A position's relative error is ‖difference‖ ÷ ‖logits‖, both without their mean over the vocabulary, which softmax doesn't see.
    """
    before, after = np.concatenate(reference), np.concatenate(candidate)
    difference = np.abs(after - before)
    relative = norms(after - before) / norms(before)
    return {
        "mean_abs": float(difference.mean()),
        "max_abs": float(difference.max()),
        "mean_relative": float(relative.mean()),
        "max_relative": float(relative.max()),
        "nmse": nmse(before, after),
        "kld": float(divergence(log_softmax(before), log_softmax(after)).mean()),
        "same_top": float((before.argmax(axis=-1) == after.argmax(axis=-1)).mean()),
        "positions": len(before),
    }


def norms(logits: Floats) -> Floats:
    """The length of each position's logits (T, V) without their mean."""
    return np.asarray(np.linalg.norm(logits - logits.mean(axis=-1, keepdims=True), axis=-1))


def output_lines(figures: dict[str, float], where: str, parameters: int | None = None) -> dict[str, Seam]:
    """Relative error of the outputs, mean and largest, divergence and first choice, each against its limit for a model of `parameters`."""
    title, limits = "16-bit base with adapter → NF4 base with adapter", level_limit("nf4", parameters)
    detail = f"logits differ by {figures['mean_abs']:.3f} on average, {figures['max_abs']:.2f} at most, NMSE {figures['nmse']:.4f}; {where}"
    least = limits.same_top

    def line(name: str, what: str, key: str, limit: float, unit: str, note: str, *, good: bool) -> Seam:
        return Seam(f"{title}, {name}", what, figures[key], limit, unit, "pass" if good else "fail", note)

    mean, worst = figures["mean_relative"], figures["max_relative"]
    return {
        "output_error": line("error", "mean relative error of the outputs", "mean_relative", MAX_ERROR, "", detail, good=mean <= MAX_ERROR),
        "output_worst": line("largest error", "largest relative error of a position's outputs", "max_relative", MAX_WORST_ERROR, "", where,
                             good=worst <= MAX_WORST_ERROR),
        "output_divergence": line("divergence", "mean KL divergence", "kld", limits.kld, "nats", f"{where}; limit: {limits.source}",
                                  good=figures["kld"] <= limits.kld),
        "output_first_choice": line("first choice", "share of positions with the same first choice", "same_top", least, "", where,
                                    good=figures["same_top"] >= least),
    }  # fmt: skip
