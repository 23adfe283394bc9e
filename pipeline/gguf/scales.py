"""Read the float16 scales and minima in a GGUF's blocks, and write them into a copy of the bytes.

A block's weights are a sum over its scales, each times a number that only the codes give (ggml-quants.c): d ·
q for Q4_0, d · q + m for Q4_1, d · (scale · q) − dmin · minimum for Q4_K. So a weight's derivative by a scale
is the weight with that scale at 1 and the others at 0, whatever the type.
"""

import torch
from torch import Tensor

from pipeline.core.errors import DataError
from pipeline.gguf.dequantize import NAMES, dequantize, layout
from pipeline.gguf.tensors import SCALES

SMALLEST = 2.0**-14  # float16's smallest normal number
LARGEST = 65504.0  # float16's largest number
LEAST = 2.0**-24  # float16's smallest subnormal number


def scale_places(ggml_type: int) -> tuple[int, ...]:
    """Return the first byte of each scale in a block of this type.

    Raises `DataError` for a type that has none.
    """
    if ggml_type not in SCALES:
        raise DataError(
            "Q-GGUF-015",
            f"tensor type {NAMES.get(ggml_type, ggml_type)} has no scales that could be trained: take a file "
            "whose linears are Q4_0 to Q8_0, Q2_K to Q6_K or IQ4, or train an adapter",
        )
    return SCALES[ggml_type]


def _blocks(quantized: Tensor, ggml_type: int) -> Tensor:
    """Return bytes (rows, row bytes) as (rows, blocks, bytes of a block)."""
    return quantized.view(len(quantized), -1, layout(ggml_type).bytes)


def stored_scales(quantized: Tensor, ggml_type: int) -> Tensor:
    """Return the scales of `quantized`, uint8 (rows, row bytes).

    They are float16 (scales per block, rows, blocks per row).
    """
    blocks = _blocks(quantized, ggml_type)
    return torch.stack(
        [
            blocks[:, :, at : at + 2].clone(memory_format=torch.contiguous_format).view(torch.float16)[..., 0]
            for at in scale_places(ggml_type)
        ]
    )


def with_scales(quantized: Tensor, ggml_type: int, scales: Tensor) -> Tensor:
    """Return a copy of `quantized` with `scales`, float16 with the shape of `stored_scales`.

    Every other byte stays.
    """
    written = quantized.clone(memory_format=torch.contiguous_format)
    blocks = _blocks(written, ggml_type)
    for at, values in zip(scale_places(ggml_type), scales, strict=True):
        blocks[:, :, at : at + 2] = values[..., None].contiguous().view(torch.uint8)
    return written


def changed_scales(stored: Tensor, change: Tensor) -> Tensor:
    """Return `stored` · (1 + `change`), rounded once to float16. A scale never changes its sign, never
    becomes too large, and becomes 0 only if it was 0.

    It falls at most to float16's smallest normal number, or to half of what is stored if that is less: at 7B
    the scales of Q6_K and Q5_K are subnormal, because weights are small there and these types have a scale
    more. (Such a scale has fewer bits: 8 at 1.5e-5.) `stored` is finite float16, `change` float32 of the same
    shape. At a change of 0 the bytes are the file's.
    """
    exact = stored.float()
    magnitude = exact.abs()
    target = magnitude * (1 + change)
    least = (magnitude / 2).maximum(magnitude.clamp(max=LEAST)).clamp(max=SMALLEST)
    held = target.clamp(max=LARGEST).maximum(least)
    return torch.copysign(held, exact).half()


def per_scale(quantized: Tensor, ggml_type: int, number: int) -> Tensor:
    """Return weights' derivatives by block scale `number`, from codes only: float32 (rows, columns)."""
    shape = (len(scale_places(ggml_type)), *_blocks(quantized, ggml_type).shape[:2])
    unit = torch.zeros(shape, dtype=torch.float16, device=quantized.device)
    unit[number] = 1
    return dequantize(with_scales(quantized, ggml_type, unit), ggml_type)
