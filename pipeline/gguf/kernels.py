# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator, no-untyped-call"
"""Triton kernels for the types of K-mixed files. They dequantize blocks directly on a GPU, bit for bit as
torch's path does.

A program computes `TILE` blocks of 256 weights. Each weight is computed independently, from bytes that it
shares with its neighbors through the cache. Imported only if Triton is installed
(`pipeline.gguf.dequantize`); TRITON_INTERPRET=1 runs it on a CPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4


@triton.jit
def half_at(place: tl.tensor) -> tl.tensor:
    """Return the float16 in two bytes at `place`, as float32.

    It is read as bytes so that no alignment is required.
    """
    bits = tl.load(place).to(tl.uint16) | (tl.load(place + 1).to(tl.uint16) << 8)
    return bits.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def scaled(block: tl.tensor, group: tl.tensor, quant: tl.tensor) -> tl.tensor:
    """Return (d · scale) · quant − (dmin · minimum).

    Q4_K and Q5_K pack 8 groups' scales and minima in 12 bytes.
    """
    four = group % 4
    first = tl.load(block + 4 + four).to(tl.int32)
    second = tl.load(block + 8 + four).to(tl.int32)
    last = tl.load(block + 12 + four).to(tl.int32)
    scale = tl.where(group < 4, first & 63, (last & 15) | ((first >> 6) << 4))
    minimum = tl.where(group < 4, second & 63, (last >> 4) | ((second >> 6) << 4))
    return (half_at(block) * scale.to(tl.float32)) * quant.to(tl.float32) - half_at(block + 2) * minimum.to(
        tl.float32
    )


@triton.jit
def q4_k(block: tl.tensor, at: tl.tensor) -> tl.tensor:
    """Return weight `at` of the block at `block`."""
    group = at // 32
    quant = (tl.load(block + 16 + (group // 2) * 32 + at % 32).to(tl.int32) >> ((group % 2) * 4)) & 15
    return scaled(block, group, quant)


@triton.jit
def q5_k(block: tl.tensor, at: tl.tensor) -> tl.tensor:
    """Return weight `at` of the block at `block`."""
    group = at // 32
    quant = (tl.load(block + 48 + (group // 2) * 32 + at % 32).to(tl.int32) >> ((group % 2) * 4)) & 15
    fifth = (tl.load(block + 16 + at % 32).to(tl.int32) >> group) & 1
    return scaled(block, group, quant | (fifth << 4))


@triton.jit
def q6_k(block: tl.tensor, at: tl.tensor) -> tl.tensor:
    """Return weight `at` of the block at `block`."""
    half = at // 128
    quarter = (at // 32) % 4
    low = (tl.load(block + half * 64 + at % 64).to(tl.int32) >> ((quarter // 2) * 4)) & 15
    high = (tl.load(block + 128 + half * 32 + at % 32).to(tl.int32) >> (quarter * 2)) & 3
    scale = tl.load(block + 192 + at // 16).to(tl.int8, bitcast=True).to(tl.float32)
    return (half_at(block + 208) * scale) * ((low | (high << 4)) - 32).to(tl.float32)


@triton.jit
def q8_0(block: tl.tensor, at: tl.tensor) -> tl.tensor:
    """Return weight `at` of the 8 blocks of 34 bytes at `block`."""
    part = block + (at // 32) * 34
    return half_at(part) * tl.load(part + 2 + at % 32).to(tl.int8, bitcast=True).to(tl.float32)


@triton.jit
def write_values(
    quantized: tl.tensor,
    out: tl.tensor,
    weights: tl.tensor,
    formula: tl.constexpr,
    size: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Write weights [256 · tile · program, …) of `quantized` into `out`.

    256 weights of `quantized` take `size` bytes.
    """
    at = tl.program_id(0).to(tl.int64) * (256 * tile) + tl.arange(0, 256 * tile)
    # The last program's lanes past the end read the last block again and write nothing.
    near = tl.minimum(at, weights - 1)
    value = formula(quantized + (near // 256) * size, (near % 256).to(tl.int32))
    tl.store(out + at, value.to(out.dtype.element_ty), mask=at < weights)


FORMULAS = {
    8: (q8_0, 8 * 34),
    12: (q4_k, 144),
    13: (q5_k, 176),
    14: (q6_k, 210),
}  # {ggml's number: (formula, bytes of 256 weights)}


def dequantize_blocks(blocks: Tensor, kind: int, out: Tensor) -> None:
    """Write the values of `blocks`, uint8 (n, bytes of a block) of the type with ggml's number `kind`, into
    `out` (n, weights of a block).

    Both are contiguous; `out` is float32, float16 or bfloat16.
    """
    formula, size = FORMULAS[kind]
    programs = triton.cdiv(out.numel(), 256 * TILE)
    if not programs:
        return
    # Triton launches on the current device, which may be another than the tensor's.
    with torch.cuda.device_of(blocks):
        write_values[(programs,)](blocks, out, out.numel(), formula, size, TILE)
