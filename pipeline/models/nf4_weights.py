"""Compare NF4's dequantized weights of every linear with the file's: in all, in scale, block by block."""

import math
from pathlib import Path
from typing import Any

from pipeline.core.checks import Check
from pipeline.gguf.safetensors_rows import Entry, read_header, read_rows
from pipeline.gguf.sources import in_model
from pipeline.models.finite import nf4_linears

BLOCK = 64  # weights that share a scale
# Measured with bitsandbytes 0.50.2 on 512 × 1,024 numbers (normal, Laplace, Student-t with 5 and 3 degrees of
# freedom, columns × 20, rows × 30, one number × 300; with and without double quantization), on every linear
# of SmolLM2-135M and of a random Qwen2:
#                     numbers                                        SmolLM2   Qwen2
#   squared error     0.0084 (normal) to 0.0149 (t3), columns 0.0277  0.0104   0.0086
#   scale             0.27 to 0.70 % too small                        0.36 %   0.57 %
#   worst block       0.153 by the type itself, with its scales        0.342    0.158
#                     rounded too up to 0.33
# A linear's scales × 1.1 are 9.5 % off in scale, and so is a double quantization whose offset is 10 % too
# large; two blocks in each other's place differ by 1 to 2 of their largest weight.


# (title, description of a linear's figure, limit)
FIGURES = {
    "nf4_weights": (
        "16-bit weights → NF4 weights",
        "largest normalized squared error of a linear's weights",
        0.03,
    ),
    "nf4_scale": (
        "Scale of the NF4 weights",
        "largest departure of a linear's scale from the file's",
        0.02,
    ),
    "nf4_blocks": (
        "Blocks of the NF4 weights",
        f"largest error in a block of {BLOCK}, as a share of its largest weight",
        0.5,
    ),
}


def nf4_check(model: Any, base: Path) -> Check:
    """Return all figures as one check: the first that does not pass, otherwise the squared error."""
    lines = list(weight_lines(model, base).values())
    return next((line for line in lines if line.verdict != "pass"), lines[0])


def weight_lines(model: Any, base: Path) -> dict[str, Check]:
    """Return the worst linear by each figure of dequantized NF4 against the file's weight.

    One weight is in memory at a time.
    """
    shards = sorted(base.glob("*.safetensors"))
    stored = {in_model(entry.name): entry for shard in shards for entry in read_header(shard)}
    linears = nf4_linears(model)
    missing = [name for name in linears if f"{name}.weight" not in stored]
    if missing or not linears:
        reason = f"{missing[0]} has another name in the file" if missing else "no linear is in NF4"
        return {
            key: Check(title, "not measured", reason, what=what, limit=limit)
            for key, (title, what, limit) in FIGURES.items()
        }
    roundings = {name: rounding(linear, stored[f"{name}.weight"]) for name, linear in linears.items()}
    return {
        key: worst_line({name: figures[key] for name, figures in roundings.items()}, *about)
        for key, about in FIGURES.items()
    }


def worst_line(values: dict[str, float], title: str, what: str, limit: float) -> Check:
    """Return the line of one figure by linear. A value that is not a number counts as the worst."""
    worst = max(values, key=lambda name: math.inf if math.isnan(values[name]) else values[name])
    average = sum(values.values()) / len(values)
    detail = f"{len(values)} linears, {average:.4f} on average, worst {worst}"
    return Check(
        title,
        "pass" if values[worst] <= limit else "fail",
        detail,
        what=what,
        figure=values[worst],
        limit=limit,
    )


def rounding(linear: Any, stored: Entry) -> dict[str, float]:
    """Compare one NF4 linear with the stored weight: squared error ÷ squared weights, distance of the
    best-fitting scale from 1, the largest error ÷ largest weight of a block.
    """
    from bitsandbytes.functional import dequantize_4bit

    weight = read_rows(stored).float().flatten()
    rounded = dequantize_4bit(linear.weight.data, linear.weight.quant_state).cpu().float().flatten()
    power = float(weight.square().sum())
    end = len(weight) // BLOCK * BLOCK  # A short last block is counted in the other figures.
    largest = weight[:end].view(-1, BLOCK).abs().amax(1)
    errors = (rounded - weight)[:end].view(-1, BLOCK).abs().amax(1)
    return {
        "nf4_weights": float((rounded - weight).square().sum()) / power,
        "nf4_scale": abs(float(rounded @ weight) / power - 1),
        "nf4_blocks": float((errors / largest.clamp(min=1e-30)).amax()),
    }
