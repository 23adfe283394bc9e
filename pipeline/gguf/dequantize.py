"""Dequantize a GGUF's rows, bit for bit as the package gguf does, on the device of the bytes.

The formulas follow ggml's `dequantize_row_*` (ggml-quants.c) and `gguf.quants`: float32 throughout, rounded
once to the requested dtype. A float16 scale, times six bits, times a quant is exact in float32, so that only
adding a minimum rounds: whether a compiler fuses it with the product makes no difference. Bytes are read
eight at a time, as int64 words: torch moves and shifts those several times as fast. A million weights take
0.5 ms in Q4_0 and 0.65 ms in Q4_1 on one thread. transformers' dequantizer takes 5.2 and 2.7 ms and knows
neither Q5_0 nor Q5_1; that of gguf takes 6.9 and 4.6 ms. Training runs it twice per matrix and step.
"""

from functools import cache
from importlib.util import find_spec

import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from pipeline.config.ggml_types import TYPES, GgmlType
from pipeline.core.errors import DataError

# Weights that are computed at a time on a CPU: 4 MB of float32 stay in its cache, and a call's cost is spread
# over many.
STEP = 1 << 20
GPU_STEP = 1 << 24  # A GPU has no such cache, only the cost of a launch.
LOW = 0x0F0F0F0F0F0F0F0F  # the low nibble of each of a word's eight bytes
ONES = LOW // 15


FLOATS = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
# types with a kernel in `pipeline.gguf.kernels`
KERNELS = tuple(kind.number for kind in TYPES.values() if kind.kernel)
NAMES = {int(kind): kind.name for kind in GGMLQuantizationType}
# {ggml's number: type}
TRAINABLE_TYPES = {kind.number: kind for kind in TYPES.values() if kind.scratch is not None}


def layout(ggml_type: int) -> GgmlType:
    """Return the type with ggml's number `ggml_type`. Raises `DataError` for one that can't be trained on."""
    if ggml_type in TRAINABLE_TYPES:
        return TRAINABLE_TYPES[ggml_type]
    raise DataError(
        "Q-GGUF-001",
        f"tensor type {NAMES.get(ggml_type, f'number {ggml_type}')} is not one that can be trained on: take "
        "a Q4_K_M, Q5_K_M, Q6_K or Q8_0 file of this model",
    )


def columns_of(ggml_type: int, stored: int) -> int:
    """Return the weights of a row of `stored` bytes. Raises `DataError` if they are not whole blocks or the
    type is unknown.
    """
    kind = layout(ggml_type)
    if stored % kind.bytes:
        raise DataError(
            "Q-GGUF-002",
            f"a row of {stored} bytes is not a whole number of {NAMES[ggml_type]}'s blocks of {kind.bytes} "
            "bytes: make the GGUF file again",
        )
    return stored // kind.bytes * kind.weights


def dequantize(
    quantized: Tensor, ggml_type: int, dtype: torch.dtype = torch.float32, out: Tensor | None = None
) -> Tensor:
    """Return the values of `quantized`, uint8 (rows, row bytes) of the type with ggml's number `ggml_type`:
    (rows, columns) of `dtype`.

    Computed in float32 and rounded once, so that every value is that of `gguf.quants.dequantize` rounded
    once. `out`, contiguous, is written and returned if it is given: allocating a large matrix again at every
    call costs more in page faults than in arithmetic. Raises `DataError` for a type that is not in
    `TRAINABLE_TYPES` and for rows that are not whole blocks.
    """
    columns = columns_of(ggml_type, quantized.shape[-1])
    if out is None:
        out = torch.empty(*quantized.shape[:-1], columns, dtype=dtype, device=quantized.device)
    elif not out.is_contiguous() or out.dtype != dtype or out.shape != (*quantized.shape[:-1], columns):
        raise ValueError(
            f"out is {tuple(out.shape)} of {out.dtype}: contiguous {(*quantized.shape[:-1], columns)} of "
            f"{dtype} is needed"
        )
    if not out.numel():
        return out
    kind = layout(ggml_type)
    if quantized.storage_offset() % (kind.bytes if ggml_type in FLOATS else 2):
        # Bytes are viewed as wider numbers, which must begin at a multiple of their width.
        quantized = quantized.clone()
    if ggml_type in FLOATS:
        return out.copy_(quantized.contiguous().view(FLOATS[ggml_type]))
    blocks, values = quantized.reshape(-1, kind.bytes), out.view(-1, kind.weights)
    if quantized.is_cuda and ggml_type in KERNELS and has_triton():
        from pipeline.gguf.kernels import dequantize_blocks

        dequantize_blocks(blocks, ggml_type, values)
        return out
    step = (STEP if quantized.device.type == "cpu" else GPU_STEP) // kind.weights
    rounded = dtype != torch.float32
    scratch = torch.empty(min(step, len(blocks)), kind.weights, device=blocks.device) if rounded else None
    for chunk, chunk_out in zip(torch.split(blocks, step), torch.split(values, step), strict=True):
        exact = chunk_out if scratch is None else scratch[: len(chunk)]
        FORMULAS.get(ggml_type, library)(chunk, exact, ggml_type)
        if rounded:
            chunk_out.copy_(exact)
    return out


@cache
def has_triton() -> bool:
    """Return True if Triton is installed. The result is cached because the lookup is slower than a kernel."""
    return find_spec("triton") is not None


def words(blocks: Tensor, start: int, end: int, *shape: int) -> Tensor:
    """Return bytes [start, end) of each block as int64 words, (blocks, *shape)."""
    # Not contiguous(): for a single block that returns the slice itself, whose start may not be a multiple of
    # 8.
    return (
        blocks[:, start:end]
        .clone(memory_format=torch.contiguous_format)
        .view(torch.int64)
        .view(len(blocks), *shape)
    )


def halves(blocks: Tensor, start: int) -> Tensor:
    """Return the float16 at byte `start` of each block as float32, (blocks, 1)."""
    return blocks[:, start : start + 2].view(torch.float16).float()


def nibbles(blocks: Tensor, start: int) -> Tensor:
    """Return the 16 bytes at `start` as 32 values, low nibbles before high ones: int64 words (blocks, 4)."""
    quantized = words(blocks, start, start + 16, 2)
    halves = torch.empty(len(blocks), 2, 2, dtype=torch.int64, device=blocks.device)
    for half, low in enumerate((quantized & LOW, (quantized >> 4).bitwise_and_(LOW))):
        # Copying 16 bytes as one element is four times as fast as two words.
        halves.view(torch.complex128)[:, half].copy_(low.view(torch.complex128))
    return halves.view(-1, 4)


def groups(blocks: Tensor, start: int) -> Tensor:
    """Return the 128 bytes at `start` as 4 groups of 32 low, then 32 high nibbles: int64 (blocks, 8, 4)."""
    quantized = words(blocks, start, start + 128, 4, 4)
    halves = torch.empty(len(blocks), 4, 2, 4, dtype=torch.int64, device=blocks.device)
    torch.bitwise_and(quantized, LOW, out=halves[:, :, 0])
    torch.bitwise_and(quantized >> 4, LOW, out=halves[:, :, 1])
    return halves.view(-1, 8, 4)


@cache
def fifth_bits(device: torch.device) -> Tensor:
    """Return for each byte the word of eight bytes that contain its bits as 16 or 0: int64 (256,)."""
    return torch.tensor(
        [sum((byte >> bit & 1) << 8 * bit + 4 for bit in range(8)) for byte in range(256)], device=device
    )


def fives(blocks: Tensor, high: int, low: int) -> Tensor:
    """Return 32 values of five bits: the fifth bits from the 4 bytes at `high`, the others from the 16 at
    `low`. int64 words (blocks, 4).
    """
    bits = fifth_bits(blocks.device).index_select(0, blocks[:, high : high + 4].contiguous().view(-1).int())
    return nibbles(blocks, low).bitwise_or_(bits.view(-1, 4))


def scaled_groups(blocks: Tensor, quants: Tensor, out: Tensor) -> None:
    """Write `quants`, words (blocks, 8, 4), times group scale minus minimum.

    Scales and minima are in the 16-byte head of Q4_K and Q5_K.
    """
    head = words(blocks, 0, 16, 2)
    six = head.view(torch.int32)  # d and dmin, four scales, four minima, the low nibbles of four more of each
    first = six[:, 1:3]
    last = six[:, 3:]
    fours = torch.cat((last, last >> 4), 1) & 0x0F0F0F0F | first >> 2 & 0x30303030
    both = torch.stack((first & 0x3F3F3F3F, fours), 2).view(torch.uint8).view(-1, 2, 8)
    scale, minimum = (both * head.view(torch.float16)[:, :2].float()[..., None])[..., None].unbind(1)
    out.view(-1, 8, 32).copy_(quants.view(torch.uint8)).mul_(scale).sub_(minimum)


def q4_0(blocks: Tensor, out: Tensor, _: int) -> None:
    """Write d · (q − 8)."""
    out.copy_(nibbles(blocks, 2).view(torch.int8).sub_(8)).mul_(halves(blocks, 0))


def q4_1(blocks: Tensor, out: Tensor, _: int) -> None:
    """Write d · q + m."""
    out.copy_(nibbles(blocks, 4).view(torch.uint8)).mul_(halves(blocks, 0)).add_(halves(blocks, 2))


def q5_0(blocks: Tensor, out: Tensor, _: int) -> None:
    """Write d · (q − 16)."""
    out.copy_(fives(blocks, 2, 6).view(torch.int8).sub_(16)).mul_(halves(blocks, 0))


def q5_1(blocks: Tensor, out: Tensor, _: int) -> None:
    """Write d · q + m."""
    out.copy_(fives(blocks, 4, 8).view(torch.uint8)).mul_(halves(blocks, 0)).add_(halves(blocks, 2))


def q8_0(blocks: Tensor, out: Tensor, _: int) -> None:
    """Write d · q."""
    out.copy_(blocks[:, 2:34].view(torch.int8)).mul_(halves(blocks, 0))


def q4_k(blocks: Tensor, out: Tensor, _: int) -> None:
    """Write (d · scale) · q − (dmin · minimum) by groups of 32."""
    scaled_groups(blocks, groups(blocks, 16), out)


def q5_k(blocks: Tensor, out: Tensor, _: int) -> None:
    """Write values as `q4_k` does. The fifth bits of group g are bits g of 32 bytes."""
    shifts = torch.arange(8, device=blocks.device).view(1, 8, 1)
    fifth = (words(blocks, 16, 48, 1, 4) >> shifts).bitwise_and_(ONES).bitwise_left_shift_(4)
    scaled_groups(blocks, groups(blocks, 48).bitwise_or_(fifth), out)


def q6_k(blocks: Tensor, out: Tensor, _: int) -> None:
    """Write (d · scale) · (q − 32) by groups of 16.

    Each half has 64 bytes of low nibbles and 32 of 4 upper bit pairs.
    """
    low, high = words(blocks, 0, 128, 2, 8), words(blocks, 128, 192, 2, 4)
    quants = torch.stack((low & LOW, (low >> 4).bitwise_and_(LOW)), 2).view(-1, 2, 4, 4)
    for pair, upper in enumerate((high << 4, high << 2, high, high >> 2)):
        quants[:, :, pair] |= upper & 3 * 16 * ONES
    scale = halves(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    out.view(-1, 16, 16).copy_(quants.view(torch.int8).sub_(32).view(-1, 16, 16)).mul_(scale[..., None])


def library(blocks: Tensor, out: Tensor, ggml_type: int) -> None:
    """Write values by transformers' dequantizer, exact in float32 but slower, for the types that are rare."""
    from transformers.integrations.gguf.dequant import dequantize

    out.copy_(dequantize(blocks, ggml_type).view_as(out))


FORMULAS = {2: q4_0, 3: q4_1, 6: q5_0, 7: q5_1, 8: q8_0, 12: q4_k, 13: q5_k, 14: q6_k}
