"""One tensor of the merged model, computed row block by row block in float64 and rounded once."""

from collections.abc import Iterator
from math import gcd
from typing import Any

from pipeline.gguf.safetensors_rows import read_rows, spans
from pipeline.models.merging.nf4 import Nf4, round_trip, tensor_scales
from pipeline.models.merging.plan import Job
from pipeline.models.merging.rounding import check_finite

BLOCK = 1 << 18  # numbers a block: its float64 sums take 2 MB, which stay in the CPU's cache


class Rows:
    """The float64 rows of a job's tensor before rounding; what they start from, with or without NF4, and the
    update apart.
    """

    def __init__(self, job: Job, nf4: Nf4 | None) -> None:
        self.job, self.nf4 = job, nf4 if job.quantized else None
        self.factors: Any = None  # of the columns, where DoRA gives them a length
        if self.nf4:
            blocks = (read_rows(job.source, *span).view(-1) for span in self.spans())
            self.maxima, self.used = tensor_scales(blocks, self.nf4)
            check_finite(self.maxima, job.name)
        if job.update and job.update.magnitude is not None and job.update.by_column:
            sums = (self.start(*span) + job.update.rows(*span) for span in self.spans())
            self.factors = job.update.magnitude / sum(rows.square().sum(dim=0) for rows in sums).sqrt()

    def spans(self) -> Iterator[tuple[int, int]]:
        """(first, last) of each block of rows; it ends where a block of NF4 ends, or at the tensor's end."""
        together = self.nf4.block // gcd(self.nf4.block, self.job.source.columns) if self.nf4 else 1
        return spans(self.job.source, BLOCK, together)

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

    def total(self, start: Any, first: int, last: int) -> Any:
        """Rows [first, last) of `start` and update together, float64, with DoRA's lengths where it has any;
        `start` stays unchanged.
        """
        update = self.job.update
        assert update is not None
        total = update.rows(first, last).add_(start)
        if self.factors is not None:
            return total.mul_(self.factors)
        if update.magnitude is not None:
            return total.mul_((update.magnitude[first:last] / total.square().sum(dim=1).sqrt())[:, None])
        return total
