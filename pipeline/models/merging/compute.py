"""Compute one tensor of the merged model. An adapter's update of a weight is two thin matrices, from which
any range of rows is computed. The sum is made in float64, row block by row block, and rounded once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

from pipeline.core.errors import DataError
from pipeline.gguf.safetensors_rows import Entry, read_rows, spans
from pipeline.models.merging.adapter import Module, by_slice
from pipeline.models.merging.nf4 import Nf4, round_trip, tensor_scales
from pipeline.models.tensors import all_finite

DROPPED = (1 << 29) - 1  # bits of a float64's fraction beyond those of a float32
BLOCK = 1 << 18  # numbers in a block; its float64 sums take 2 MB, which stay in the CPU's cache


@dataclass(frozen=True)
class Update:
    """Update scale · left · right, with one pair of matrices a slice: left (S, O, r), right (S, r, I), for a
    weight of S·O rows and I columns. A linear is one slice; a parameter of three dimensions has one for each
    expert.

    `magnitude` is DoRA's (arXiv:2402.09353): the sum's rows (`by_column`: columns) are brought to these
    lengths.
    """

    left: Any
    right: Any
    scale: float
    magnitude: Any = None
    by_column: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the weight that it belongs to."""
        return self.left.shape[0] * self.left.shape[1], self.right.shape[2]

    def rows(self, first: int, last: int) -> Any:
        """Return rows [first, last) of scale · left · right in float64."""
        import torch

        high = self.left.shape[1]
        parts = []
        for number in range(first // high, (last - 1) // high + 1):
            start = max(first - number * high, 0)
            stop = min(last - number * high, high)
            parts.append(self.left[number, start:stop].double() @ (self.right[number].double() * self.scale))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def part(self, number: int, first: int, last: int) -> "Update":
        """Return the update of rows [first, last) of one slice."""
        return Update(self.left[number : number + 1, first:last], self.right[number : number + 1], self.scale)


@dataclass(frozen=True)
class Job:
    """One tensor of the merged model: numbers of `source`, through NF4 if `quantized`, plus `update`. `file`
    is its shard's name, which the plan sets.
    """

    name: str
    source: Entry
    file: str = ""
    update: Update | None = None
    quantized: bool = False


def low_rank(module: Module, scale: float, *, transposed: bool, slices: int = 1) -> Update:
    """Return the update of a linear's or a parameter's weight; `transposed` for weights stored (in, out)."""
    a, b = read_rows(module.parts["lora_A.weight"]), read_rows(module.parts["lora_B.weight"])
    a, b = by_slice(a, b, slices)
    left, right = (a.transpose(1, 2), b.transpose(1, 2)) if transposed else (b, a)
    return Update(left, right, scale, _magnitude(module), by_column=transposed)


def lookup(module: Module, scale: float) -> Update:
    """Return the update of an embedding's weight (V, H).

    PEFT keeps A (r, V), B (H, r), and DoRA's lengths by column.
    """
    a, b = read_rows(module.parts["lora_embedding_A"]), read_rows(module.parts["lora_embedding_B"])
    return Update(a.T[None], b.T[None], scale, _magnitude(module), by_column=True)


def bias(module: Module, scale: float) -> Update:
    """Return the update of a linear's bias if B has one."""
    import torch

    return Update(read_rows(module.parts["lora_B.bias"])[None], torch.ones(1, 1, 1), scale)


def _magnitude(module: Module) -> Any:
    entry = module.parts.get("lora_magnitude_vector")
    return None if entry is None else read_rows(entry).double().view(-1)


def round_once(exact: Any, dtype: Any) -> Any:
    """Return float64 numbers as `dtype`, within 0.5 ulp for results from its smallest normal number up.

    torch converts float64 by way of float32, which rounds twice. Here what float32 would drop is first
    gathered in its last bit (rounding to odd; Boldo and Melquiond, "Emulation of FMA and correctly rounded
    sums", IEEE Trans. Computers 57(4), 2008). So the second rounding decides as one from float64 would.
    `exact` is overwritten.
    """
    import torch

    if torch.finfo(dtype).bits == 16:
        bits = exact.view(torch.int64)
        sticky = bits & DROPPED
        bits.bitwise_or_(sticky.add_(DROPPED)).bitwise_and_(~DROPPED)
    return exact.float().to(dtype)


def check_finite(rounded: Any, name: str) -> None:
    """Raise `DataError` naming `name` if a number of a floating-point tensor is infinite or not a number."""
    kind = str(rounded.dtype).removeprefix("torch.")
    if rounded.is_floating_point() and not all_finite(rounded):
        raise DataError(
            "Q-MODELS-022",
            f"{name} has values that {kind} can't hold: set convert.type to BF16, or correct the base or "
            "the adapter if it is that already",
        )


class Rows:
    """Float64 rows of a job before rounding: the start, with or without NF4, and the update separately."""

    def __init__(self, job: Job, nf4: Nf4 | None) -> None:
        self.job = job
        self.nf4 = nf4 if job.quantized else None
        self.factors: Any = None  # factors of the columns, if DoRA gives them a length
        if self.nf4:
            blocks = (read_rows(job.source, *span).view(-1) for span in self.spans())
            self.maxima, self.used = tensor_scales(blocks, self.nf4)
            check_finite(self.maxima, job.name)
        if job.update and job.update.magnitude is not None and job.update.by_column:
            sums = (self.start(*span) + job.update.rows(*span) for span in self.spans())
            self.factors = job.update.magnitude / sum(rows.square().sum(dim=0) for rows in sums).sqrt()

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield (first, last) of each block of rows.

        A block stops where a block of NF4 stops, or at the tensor's end.
        """
        together = self.nf4.block // gcd(self.nf4.block, self.job.source.columns) if self.nf4 else 1
        return spans(self.job.source, BLOCK, together)

    def start(self, first: int, last: int) -> Any:
        """Return rows [first, last) of what the update is added to, float64."""
        values = read_rows(self.job.source, first, last)
        if self.nf4:
            columns = self.job.source.columns
            block = self.nf4.block
            span = slice(first * columns // block, -(-last * columns // block))
            seen = round_trip(values.view(-1), self.maxima[span], self.used[span], self.nf4)
            values = seen.view(values.shape)
        return values.double()

    def total(self, start: Any, first: int, last: int) -> Any:
        """Return rows [first, last) of `start` and update together, float64, with DoRA's lengths if it has
        any. `start` stays unchanged.
        """
        update = self.job.update
        assert update is not None
        total = update.rows(first, last).add_(start)
        if self.factors is not None:
            return total.mul_(self.factors)
        if update.magnitude is not None:
            return total.mul_((update.magnitude[first:last] / total.square().sum(dim=1).sqrt())[:, None])
        return total
