"""What NF4 changes: weights against those of the file, and logits of the 16-bit base against the NF4 base, both with the adapter."""

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.fidelity.finite import nf4_linears
from pipeline.llamacpp.logits import Floats, divergence, log_softmax, nmse
from pipeline.seams.seam import Seam

POSITIONS = 32  # last positions of a prompt whose logits are compared: a 152k vocabulary takes 19 MB a prompt
# NF4 with blocks of 64 costs normally distributed weights 0.85 % of their square, SmolLM2's worst linear 1.04 % (measured). The limit
# leaves room for heavier tails; other weights or a damaged copy cost far more.
MAX_WEIGHT_NMSE = 0.02
# What rounding costs in logits depends on the model: the smaller, the more. SmolLM2-135M, the smallest of the recipes, on 8 held-out rows:
# KLD 0.06 and 95 % the same first choice with its adapter, 0.20 and 81 % untuned; where one side lacks the adapter, 1.2 to 1.4 and 65 to
# 70 %. The limits lie between: a right model passes, a wrong one doesn't.
MAX_KLD = 0.7
MIN_SAME_TOP = 0.7


def last_logits(model: Any, rows: list[list[int]]) -> list[Floats]:
    """Float32 logits (≤ POSITIONS, V) of the last positions of each row of token ids, in evaluation mode."""
    import torch

    model.eval()
    with torch.no_grad():
        return [_logits(model, torch.tensor([ids], device=model.device)).cpu().numpy() for ids in rows]


def _logits(model: Any, ids: Any) -> Any:
    return model(input_ids=ids, use_cache=False, logits_to_keep=POSITIONS).logits[0].float()


def compare_logits(reference: list[Floats], candidate: list[Floats]) -> dict[str, float]:
    """Mean and largest absolute difference, NMSE, mean KL divergence in nats and share of the same first choice, over all positions."""
    before, after = np.concatenate(reference), np.concatenate(candidate)
    difference = np.abs(after - before)
    return {
        "mean_abs": float(difference.mean()),
        "max_abs": float(difference.max()),
        "nmse": nmse(before, after),
        "kld": float(divergence(log_softmax(before), log_softmax(after)).mean()),
        "same_top": float((before.argmax(axis=-1) == after.argmax(axis=-1)).mean()),
        "positions": len(before),
    }


def output_lines(figures: dict[str, float], where: str) -> dict[str, Seam]:
    """The divergence and the first choice, each against its limit; the other figures have none, for they have a model's own scale."""
    title = "16-bit base with adapter → NF4 base with adapter"
    verdicts = ["pass" if good else "fail" for good in (figures["kld"] <= MAX_KLD, figures["same_top"] >= MIN_SAME_TOP)]
    detail = f"logits differ by {figures['mean_abs']:.3f} on average, {figures['max_abs']:.2f} at most, NMSE {figures['nmse']:.4f}; {where}"
    return {
        "output_divergence": Seam(f"{title}, divergence", "mean KL divergence", figures["kld"], MAX_KLD, "nats", verdicts[0], detail),
        "output_first_choice": Seam(
            f"{title}, first choice", "share of positions with the same first choice", figures["same_top"], MIN_SAME_TOP, "", verdicts[1], where,
        ),
    }  # fmt: skip


def weight_line(model: Any, base: Path) -> Seam:
    """The worst linear's squared error, dequantised NF4 against the file's weight; one linear in memory at a time."""
    from bitsandbytes.functional import dequantize_4bit
    from safetensors import safe_open

    title, what = "16-bit weights → NF4 weights", "largest normalised squared error of a linear's weights"
    files: dict[str, Path] = {}
    for shard in sorted(base.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as opened:
            files |= dict.fromkeys(opened.keys(), shard)
    linears = nf4_linears(model)
    missing = [name for name in linears if f"{name}.weight" not in files]
    if missing or not linears:
        reason = f"{missing[0]} has another name in the file" if missing else "no linear is in NF4"
        return Seam(title, what, None, MAX_WEIGHT_NMSE, "", "not measured", reason)
    errors = {}
    for name, linear in linears.items():
        with safe_open(files[f"{name}.weight"], framework="pt") as opened:
            weight = opened.get_tensor(f"{name}.weight").float()
        rounded = dequantize_4bit(linear.weight.data, linear.weight.quant_state).cpu().float()
        errors[name] = float((rounded - weight).square().sum() / weight.square().sum())
    worst = max(errors, key=lambda name: errors[name] if errors[name] == errors[name] else float("inf"))
    detail = f"{len(errors)} linears, {np.mean(list(errors.values())):.4f} on average, worst {worst}"
    return Seam(title, what, errors[worst], MAX_WEIGHT_NMSE, "", "pass" if errors[worst] <= MAX_WEIGHT_NMSE else "fail", detail)
