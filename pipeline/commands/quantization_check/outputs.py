"""What NF4 changes in what the model says: logits of the 16-bit base against the NF4 base, both with the
adapter.
"""

from typing import Any

import numpy as np

from pipeline.core.checks import Check
from pipeline.llamacpp.logits import Floats
from pipeline.metrics.level_limits import SIZE_POWER
from pipeline.metrics.log_probabilities import divergence, log_softmax, nmse

POSITIONS = 32  # last positions of a prompt whose logits are compared: a 152k vocabulary takes 19 MB a prompt
# What rounding costs in outputs depends on the model and the text, so these limits are of another kind than
# those of the weights, which find a single linear that is off
# (`pipeline.commands.quantization_check.weights`): they say whether this is the same model at all. Measured,
# all of sound models:
#                                     mean error   largest   KLD     same first choice
#   SmolLM2-135M, 4 built-in prompts  0.45         1.12      0.68    70 %
#   the same, 8 held-out rows         –            –         0.20    81 %    (with its trained adapter 0.06,
#   95 %)
#   random Qwen2 of 39M, 4 prompts    0.19         0.22      0.002   80 %
# and of SmolLM2 with its adapter on one side only: KLD 1.2 to 1.4, 65 to 70 %. So for a model of that size or
# smaller:
MAX_ERROR, MAX_WORST_ERROR, MAX_KLD, MAX_OTHER_FIRST = 0.7, 1.7, 1.0, 0.4
# parameters; a larger model must be closer, by the power of the size that `level_limits` has from published
# figures
SMALLEST = 134_515_008


def last_logits(model: Any, rows: list[list[int]]) -> list[Floats]:
    """Float32 logits (≤ POSITIONS, V) of the last positions of each row of token ids, in evaluation mode."""
    import torch

    model.eval()
    with torch.no_grad():
        outputs = (
            model(
                input_ids=torch.tensor([ids], device=model.device),
                use_cache=False,
                logits_to_keep=POSITIONS,
            )
            for ids in rows
        )
        return [output.logits[0].float().cpu().numpy() for output in outputs]


def compare_logits(reference: list[Floats], candidate: list[Floats]) -> dict[str, float]:
    """Over all positions: mean and largest absolute difference, mean and largest relative error of a
    position, NMSE, mean KL divergence in nats and share of the same first choice.

    A position's relative error is ‖difference‖ ÷ ‖logits‖, both without their mean over the vocabulary, which
    softmax doesn't see.
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


def output_lines(figures: dict[str, float], where: str, parameters: int | None = None) -> dict[str, Check]:
    """Relative error of the outputs, mean and largest, divergence and first choice, each against its limit
    for a model of `parameters`.
    """
    larger = max(1.0, (parameters or 0) / SMALLEST) ** SIZE_POWER
    detail = (
        f"logits differ by {figures['mean_abs']:.3f} on average, {figures['max_abs']:.2f} at most, NMSE "
        f"{figures['nmse']:.4f}; {where}"
    )

    def line(
        name: str,
        what: str,
        key: str,
        limit: float,
        note: str = where,
        unit: str = "",
        at_least: bool = False,
    ) -> Check:
        good = figures[key] >= limit if at_least else figures[key] <= limit
        return Check(
            f"16-bit base with adapter → NF4 base with adapter, {name}",
            "pass" if good else "fail",
            note,
            what=what,
            figure=figures[key],
            limit=limit,
            unit=unit,
        )

    # a divergence grows with the square of the error, and so does its limit
    most, worst, most_kld = MAX_ERROR / larger**0.5, MAX_WORST_ERROR / larger**0.5, MAX_KLD / larger
    least = 1 - MAX_OTHER_FIRST / larger**0.5
    choice = "share of positions with the same first choice"
    return {
        "output_error": line("error", "mean relative error of the outputs", "mean_relative", most, detail),
        "output_worst": line(
            "largest error", "largest relative error of a position's outputs", "max_relative", worst
        ),
        "output_divergence": line("divergence", "mean KL divergence", "kld", most_kld, unit="nats"),
        "output_first_choice": line("first choice", choice, "same_top", least, at_least=True),
    }
