"""NF4 with bitsandbytes' bytes, in blocks of rows: weights are scaled by their block's largest absolute
value, and the scales are in 8 bit if wanted.

NF4: QLoRA, arXiv:2305.14314, section 3 and appendix E; the 8-bit type of the scales: arXiv:2110.02861. The
tables and the scales are bitsandbytes' own. The weights' codes are found here, three times as fast (a million
float32 weights there and back on one thread: 18 ms against 58 ms). Rounding follows bitsandbytes on the CPU,
so that a merge reads exactly the weights that training saw. One thing is not followed: with AVX-512,
bitsandbytes 0.50.2 dequantizes matrices whose columns are a multiple of 16 and not of 64 with scales of other
blocks. Training's preflight refuses such a base on a CPU. Everything but the scales works on any range of
whole blocks.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from pipeline.models.tensors import all_finite

NESTED_BLOCK = 256  # scales that share one scale of their own
CELLS = 512  # cells of the table that finds a number's code
TOGETHER = 1 << 18  # numbers packed at a time; their codes stay in the CPU's cache


@dataclass(frozen=True)
class Nf4:
    """Quantization of a training: block size, whether scales are quantized too, compute type's torch name."""

    compute_dtype: str
    double_quant: bool = True
    block: int = 64

    @property
    def dtype(self) -> Any:
        """Compute type as a torch type. Weights are rounded to it before they are quantized and after."""
        import torch

        return getattr(torch, self.compute_dtype)


def block_maxima(values: Any, block: int) -> Any:
    """Return the largest absolute value (float32) of each block of a flat tensor; the last may be short."""
    import torch

    whole = values.numel() // block * block
    maxima = values[:whole].view(-1, block).abs().amax(dim=1).float()
    if whole == values.numel():
        return maxima
    return torch.cat([maxima, values[whole:].abs().amax().float().clamp(min=1e-38).view(1)])


def scales(maxima: Any, double_quant: bool) -> Any:
    """Return the scales (float32) from all blocks' maxima of a tensor. With double quantization the mean is
    subtracted and the rest rounded to 8 bit by blocks of 256.
    """
    if not double_quant:
        return maxima
    from bitsandbytes.functional import dequantize_blockwise, quantize_blockwise

    offset = maxima.mean()
    return dequantize_blockwise(*quantize_blockwise(maxima - offset, blocksize=NESTED_BLOCK)) + offset


def codes(values: Any, maxima: Any, block: int) -> Any:
    """Return each number's code, 0 to 15 (int32, flat), in a flat range of whole blocks, by their maxima."""
    import torch

    whole = values.numel() // block * block
    inverse = 1.0 / maxima[: whole // block].clamp(min=1e-38)
    share = (values[:whole].float().view(-1, block) * inverse[:, None]).view(-1)
    if whole != values.numel():
        share = torch.cat([share, values[whole:].float() / maxima[whole // block]])
    first, middle = _cells()
    cell = ((share + 1) * (CELLS / 2)).int()
    return first.index_select(0, cell).add_(share > middle.index_select(0, cell))


def values_of(indices: Any, used: Any, block: int, dtype: Any) -> Any:
    """Return the numbers (flat, of `dtype`) that codes stand for, with the scales of their blocks."""
    whole = indices.numel() // block * block
    values = nf4_values().index_select(0, indices)
    values[:whole].view(-1, block).mul_(used[: whole // block, None])
    values[whole:].mul_(used[whole // block :])
    return values.to(dtype)


def tensor_scales(blocks: Iterable[Any], nf4: Nf4) -> tuple[Any, Any]:
    """Return (maxima, scales) of a tensor that comes in flat ranges of whole blocks."""
    import torch

    maxima = torch.cat([block_maxima(values.to(nf4.dtype), nf4.block) for values in blocks])
    return maxima, scales(maxima, nf4.double_quant)


def round_trip(values: Any, maxima: Any, used: Any, nf4: Nf4) -> Any:
    """Return the values that training saw for a flat range of whole blocks.

    They are cast to the compute type, quantized, and dequantized.
    """
    return values_of(codes(values.to(nf4.dtype), maxima, nf4.block), used, nf4.block, nf4.dtype)


@contextmanager
def quick_quantizer() -> Iterator[None]:
    """Let bitsandbytes quantize to NF4 by `codes` on a CPU while the body runs: the same bytes in a quarter
    of the time.
    """
    import bitsandbytes  # noqa: F401 (defines the operator)
    import torch

    theirs = torch.library.get_kernel("bitsandbytes::quantize_4bit", "CPU")
    on_cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def quantize(values: Any, block: int, kind: str, storage: Any) -> tuple[Any, Any]:
        flat = values.reshape(-1)
        if kind == "nf4" and storage == torch.uint8 and flat.numel() % block == 0 and all_finite(flat):
            return packed(flat, block)
        return theirs.call_boxed(on_cpu, values, block, kind, storage)  # type: ignore[no-any-return]

    with torch.library._scoped_library("bitsandbytes", "IMPL") as library:
        library.impl("quantize_4bit", quantize, "CPU")
        yield


def packed(values: Any, block: int) -> tuple[Any, Any]:
    """Return (codes uint8 (n ÷ 2, 1), two a byte, first high; block maxima) of a flat tensor's blocks."""
    import torch

    maxima = block_maxima(values, block)
    out = torch.empty(values.numel() // 2, 1, dtype=torch.uint8)
    step = TOGETHER // block * block
    for at in range(0, values.numel(), step):
        indices = codes(values[at : at + step], maxima[at // block :], block)
        torch.add(indices[::2] << 4, indices[1::2], out=out[at // 2 : (at + step) // 2, 0])
    return out, maxima


@cache
def nf4_values() -> Any:
    """Return the 16 numbers of NF4, float32, sorted."""
    from bitsandbytes.functional import get_4bit_type

    return get_4bit_type("nf4", "cpu")


@cache
def _cells() -> tuple[Any, Any]:
    """Return for each of CELLS equal cells from -1 to 1 the code at its start (int32) and the middle above
    that code (float32).

    No cell contains two middles, so one comparison finds the code. `torch.bucketize` gives the same and takes
    five times as long.
    """
    import torch

    values = nf4_values()
    middles = (values[:-1] + values[1:]) / 2
    first = torch.bucketize(torch.arange(CELLS + 1) / (CELLS / 2) - 1, middles, out_int32=True)
    return first, torch.cat([middles, torch.tensor([2.0])])[first]
