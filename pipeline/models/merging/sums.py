"""One tensor of the merged model, computed row block by row block in float64 and rounded once."""

from collections.abc import Iterator
from math import gcd
from typing import Any

from pipeline.gguf.safetensors_rows import Entry, read_rows
from pipeline.models.merging.nf4 import Nf4, round_trip, tensor_scales
from pipeline.models.merging.plan import Job
from pipeline.models.merging.rounding import check_finite
from pipeline.models.merging.updates import column_factors

BLOCK = 1 << 18  # numbers a block: its float64 sums take 2 MB, which stay in the CPU's cache


class Rows:
    """The float64 rows of a job's tensor before rounding; what they start from, with or without NF4, and the
    update apart.
    """

    def __init__(self, job: Job, nf4: Nf4 | None) -> None:
        self.job, self.nf4 = job, nf4 if job.quantized else None
        self.maxima: Any = None
        self.used: Any = None
        self.factors: Any = None
        if self.nf4:
            blocks = (read_rows(job.source, *span).view(-1) for span in spans(job.source, self.nf4.block))
            self.maxima, scales = tensor_scales(blocks, self.nf4)
            check_finite(self.maxima, job.name)
            self.used = scales.used
        if job.update and job.update.magnitude is not None and job.update.by_column:
            self.factors = column_factors(
                job.update.magnitude, (self.start(*span) + self.update(*span) for span in self.spans())
            )

    def spans(self) -> Iterator[tuple[int, int]]:
        """(first, last) of each block of rows."""
        return spans(self.job.source, self.nf4.block if self.nf4 else 1)

    def start(self, first: int, last: int) -> Any:
        """Rows [first, last) of what the update is added to, float64."""
        values = read_rows(self.job.source, first, last)
        if self.nf4:
            span = slice(
                first * self.job.source.columns // self.nf4.block,
                -(-last * self.job.source.columns // self.nf4.block),
            )
            values = round_trip(values.view(-1), self.maxima[span], self.used[span], self.nf4).view(
                values.shape
            )
        return values.double()

    def update(self, first: int, last: int) -> Any:
        """Rows [first, last) of the update, float64."""
        assert self.job.update is not None
        return self.job.update.rows(first, last)

    def total(self, start: Any, first: int, last: int) -> Any:
        """Rows [first, last) of `start` and update together, float64, with DoRA's lengths where it has any;
        `start` stays unchanged.
        """
        total = self.update(first, last).add_(start)
        if self.factors is not None:
            return total.mul_(self.factors)
        if self.job.update and self.job.update.magnitude is not None:
            return total.mul_(
                (self.job.update.magnitude[first:last] / total.square().sum(dim=1).sqrt())[:, None]
            )
        return total


def spans(entry: Entry, block: int) -> Iterator[tuple[int, int]]:
    """Runs of rows of about BLOCK numbers that end where a block of `block` numbers ends, or at the tensor's
    end.
    """
    whole = block // gcd(block, entry.columns)
    step = max(1, BLOCK // entry.columns // whole) * whole
    return ((first, min(first + step, entry.rows)) for first in range(0, entry.rows, step))
