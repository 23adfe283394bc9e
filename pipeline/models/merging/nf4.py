"""NF4 in plain torch, with bitsandbytes' bytes: blocks of weights by their largest absolute value, their
scales in 8 bit if wished.

NF4: QLoRA, arXiv:2305.14314, section 3 and appendix E; the 8-bit type of the scales: arXiv:2110.02861.
Rounding follows bitsandbytes on the
CPU, so that a merge meets the very weights that training saw. One thing is not followed: with AVX-512,
bitsandbytes 0.50.2 dequantizes matrices whose columns are a multiple of 16 and not of 64 with scales of other
blocks; training's preflight refuses such a base on a CPU. Everything but the scales works on any run of whole
blocks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

NESTED_BLOCK = 256  # scales that share one scale of their own
CELLS = 512  # of the table that finds a number's code
GRID = 65_535  # steps to which bitsandbytes' CPU rounds a scale before it looks its code up
# the 16 values of the paper's appendix E
VALUES = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)


@dataclass(frozen=True)
class Nf4:
    """How training quantized: numbers a block, whether scales are quantized too, and the type it computed in
    (torch's name).
    """

    compute_dtype: str
    double_quant: bool
    block: int = 64

    @property
    def dtype(self) -> Any:
        """The compute type as a torch type: weights are rounded to it before they are quantized and after."""
        import torch

        return getattr(torch, self.compute_dtype)


@dataclass(frozen=True)
class Scales:
    """Scales of all blocks as they are used (float32); where they are quantized, also the codes (uint8),
    their scales and the offset.
    """

    used: Any
    codes: Any = None
    nested: Any = None
    offset: Any = None


def block_maxima(values: Any, block: int) -> Any:
    """Largest absolute value (float32) of each block of a flat tensor; the last block may be short."""
    import torch

    whole = values.numel() // block * block
    maxima = values[:whole].view(-1, block).abs().amax(dim=1).float()
    if whole == values.numel():
        return maxima
    return torch.cat([maxima, values[whole:].abs().amax().float().clamp(min=1e-38).view(1)])


def scales(maxima: Any, double_quant: bool) -> Scales:
    """Scales from all blocks' maxima of a tensor; with double quantization the mean is taken off and the rest
    rounded to 8 bit by blocks of 256.
    """
    if not double_quant:
        return Scales(maxima)
    import torch

    offset = maxima.mean()
    centered = maxima - offset
    padded = torch.nn.functional.pad(centered, (0, -len(centered) % NESTED_BLOCK)).view(-1, NESTED_BLOCK)
    nested = padded.abs().amax(dim=1)
    share = torch.where(nested[:, None] > 0, padded * (1.0 / nested[:, None]), -1.0).clamp(-1, 1)
    codes = _grid()[((share + 1) * 0.5 * GRID + 0.5).int()]
    used = (dynamic_values()[codes] * nested[:, None]).view(-1)[: len(centered)] + offset
    return Scales(used, codes.view(-1)[: len(centered)].to(torch.uint8), nested, offset)


def codes(values: Any, maxima: Any, block: int) -> Any:
    """Code 0 to 15 (int32, flat) of each number of a flat run of whole blocks, from the blocks' own
    maxima.
    """
    import torch

    whole = values.numel() // block * block
    inverse = 1.0 / maxima[: whole // block].clamp(min=1e-38)
    share = (values[:whole].float().view(-1, block) * inverse[:, None]).clamp_(-1, 1).view(-1)
    if whole != values.numel():
        share = torch.cat([share, torch.clamp(values[whole:].float() / maxima[whole // block], -1, 1)])
    first, middle = _cells()
    cell = ((share + 1) * (CELLS / 2)).int()
    return first.index_select(0, cell).add_(share > middle.index_select(0, cell))


def values_of(found: Any, used: Any, block: int, dtype: Any) -> Any:
    """The numbers (flat, of `dtype`) that codes stand for, with the scales of their blocks."""
    whole = found.numel() // block * block
    values = nf4_values().index_select(0, found)
    values[:whole].view(-1, block).mul_(used[: whole // block, None])
    values[whole:].mul_(used[whole // block :])
    return values.to(dtype)


def packed(found: Any) -> Any:
    """Two codes a byte, the first in the high half; an odd last one is padded with the code of 0."""
    import torch

    even = torch.nn.functional.pad(found, (0, found.numel() % 2), value=7).to(torch.uint8)
    return (even[::2] << 4) | even[1::2]


def tensor_scales(blocks: Iterable[Any], nf4: Nf4) -> tuple[Any, Scales]:
    """(maxima, scales) of a tensor that comes in flat runs of whole blocks."""
    import torch

    maxima = torch.cat([block_maxima(values.to(nf4.dtype), nf4.block) for values in blocks])
    return maxima, scales(maxima, nf4.double_quant)


def round_trip(values: Any, maxima: Any, used: Any, nf4: Nf4) -> Any:
    """What training saw in place of a flat run of whole blocks: rounded to the compute type, quantized,
    dequantized.
    """
    return values_of(codes(values.to(nf4.dtype), maxima, nf4.block), used, nf4.block, nf4.dtype)


@cache
def nf4_values() -> Any:
    """The 16 numbers of NF4, float32, sorted."""
    import torch

    return torch.tensor(VALUES, dtype=torch.float32)


@cache
def _cells() -> tuple[Any, Any]:
    """For each of CELLS even cells from -1 to 1: the code where it begins (int32) and the middle above that
    code (float32).

    No cell holds two middles, so one comparison finds the code; `torch.bucketize` gives the same and takes
    five times as long.
    """
    import torch

    values = nf4_values()
    middles = (values[:-1] + values[1:]) / 2
    first = torch.bucketize(torch.arange(CELLS + 1) / (CELLS / 2) - 1, middles, out_int32=True)
    return first, torch.cat([middles, torch.tensor([2.0])])[first]


@cache
def _grid() -> Any:
    """Code of the 8-bit type (int64) nearest to each of 65,536 even steps from -1 to 1: so coarsely
    bitsandbytes rounds on the CPU.
    """
    import torch

    table = dynamic_values()
    return torch.bucketize(torch.arange(GRID + 1) / GRID * 2 - 1, (table[:-1] + table[1:]) / 2)


@cache
def dynamic_values() -> Any:
    """The 256 numbers of the signed dynamic 8-bit type, float32, sorted: 7 decades of middles of ever finer
    steps, 0 and 1.
    """
    import torch

    numbers = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2**decade + 1, dtype=torch.float32)
        middles = (10.0 ** (decade - 6)) * ((edges[:-1] + edges[1:]) / 2)
        numbers += [*middles.tolist(), *(-middles).tolist()]
    return torch.tensor(sorted(numbers), dtype=torch.float32)
