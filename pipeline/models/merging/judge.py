"""Measure how far a written tensor is from its expected values. They are computed separately from the merge's
own loop, also under assumptions about what went wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.gguf.safetensors_rows import DTYPES, NAMES, Entry, read_rows, spans
from pipeline.models.merging.compute import Job, Update, round_once
from pipeline.models.merging.nf4 import Nf4, codes, tensor_scales, values_of
from pipeline.models.tensors import all_finite

ROWS = 64  # rows in a block: whole blocks of NF4 for any number of columns
# {type: (bits of the fraction, exponent of the smallest normal number)}
FRACTION = {"F16": (10, -14), "BF16": (7, -126), "F32": (23, -126)}
EXPONENT = 0x7FF << 52  # exponent bits of a float64


@dataclass(frozen=True)
class Assumption:
    """Assumption how a tensor came about: the update was merged `times` times, into NF4 or not, and rounded
    to another type on the way (torch's name).

    The last one's error is in units of that type.
    """

    description: str
    nf4: Nf4 | None
    times: int = 1
    through: str | None = None


def tensor_error(job: Job, merged: Entry, nf4: Nf4 | None, assumed: Assumption | None = None) -> float:
    """Return the largest distance of `merged` from the result of `job`, in units in the last place that the
    exact value has in `merged`'s type.

    0 if both have the same bits, infinite if a number is not finite. `nf4` is the quantization of the job's
    source, if any.
    """
    import torch

    if job.update is None and nf4 is None and not assumed and merged.dtype == job.source.dtype:
        return _copy_error(job.source, merged)
    scales = None
    if nf4:
        scales = tensor_scales((read_rows(job.source, *span).view(-1) for span in _spans(job.source)), nf4)
    lengths = _lengths(job, nf4, scales)
    kept_as = getattr(torch, DTYPES[merged.dtype][1])
    worst = 0.0
    for first, last in _spans(job.source):
        start = _start(job.source, nf4, scales, first, last)
        change = _change(job.update, first, last)
        exact = start
        for _ in range(assumed.times if assumed else 1):
            exact = (exact if exact is start else round_once(exact, kept_as).double()) + change
            if lengths is not None and job.update:
                exact = exact * (
                    job.update.magnitude[None]
                    if job.update.by_column
                    else job.update.magnitude[first:last, None]
                )
                exact = exact / (lengths[None] if job.update.by_column else lengths[first:last, None])
        values = read_rows(merged, first, last)
        if (
            assumed
            and assumed.through
            and not torch.equal(values, values.to(getattr(torch, assumed.through)).to(values.dtype))
        ):
            return float("inf")
        kind = NAMES[assumed.through] if assumed and assumed.through else merged.dtype
        distance = (values.double() - exact).abs() / unit(exact, kind)
        worst = max(worst, float(distance.nan_to_num(nan=float("inf")).max()))
    return worst


def unit(exact: Any, dtype: str) -> Any:
    """Return one unit in the last place of each float64 number in a type with safetensors' name."""
    import torch

    bits, smallest = FRACTION[dtype]
    power = (exact.view(torch.int64) & EXPONENT).view(torch.float64)  # 2 to the number's exponent; 0 for 0
    return power.clamp(min=2.0**smallest) * 2.0**-bits


def _copy_error(source: Entry, merged: Entry) -> float:
    import torch

    worst = 0.0
    for span in _spans(source):
        original, other = read_rows(source, *span), read_rows(merged, *span)
        if not torch.equal(original.view(torch.uint8), other.view(torch.uint8)):
            change = (other.double() - original.double()).abs()
            worst = max(
                worst,
                float((change / unit(original.double(), merged.dtype)).nan_to_num(nan=float("inf")).max())
                if original.is_floating_point()
                else float("inf"),
            )
        elif original.is_floating_point() and not all_finite(original):
            return float("inf")
    return worst


def _spans(entry: Entry) -> Iterator[tuple[int, int]]:
    return spans(entry, 1 << 18, ROWS)


def _start(source: Entry, nf4: Nf4 | None, scales: Any, first: int, last: int) -> Any:
    values = read_rows(source, first, last)
    if nf4:
        maxima, used = scales
        begin = first * source.columns // nf4.block
        end = -(-last * source.columns // nf4.block)
        indices = codes(values.to(nf4.dtype).view(-1), maxima[begin:end], nf4.block)
        values = values_of(indices, used[begin:end], nf4.block, nf4.dtype).view(values.shape)
    return values.double()


def _change(update: Update | None, first: int, last: int) -> Any:
    """Return rows of scale · left · right.

    Here every row's slice is looked up, so that no row can be off by one slice.
    """
    import torch

    if update is None:
        return 0.0
    slices, high, _ = update.left.shape
    rows = torch.arange(first, last)
    left = update.left.reshape(slices * high, -1)[first:last].double()
    if slices == 1:
        return torch.matmul(left, update.right[0].double()).mul_(update.scale)
    change = torch.zeros(last - first, update.right.shape[2], dtype=torch.float64)
    for number in (rows // high).unique().tolist():
        mine = rows // high == number
        change[mine] = torch.matmul(left[mine], update.right[number].double()) * update.scale
    return change


def _lengths(job: Job, nf4: Nf4 | None, scales: Any) -> Any:
    """Return the lengths of the sum's rows or columns, float64, if the update has magnitudes."""
    import torch

    if job.update is None or job.update.magnitude is None:
        return None
    axis = 0 if job.update.by_column else 1
    parts = [
        torch.square(_start(job.source, nf4, scales, first, last) + _change(job.update, first, last)).sum(
            dim=axis
        )
        for first, last in _spans(job.source)
    ]
    return (torch.stack(parts).sum(dim=0) if axis == 0 else torch.cat(parts)).sqrt()
