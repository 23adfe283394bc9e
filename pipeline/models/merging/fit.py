"""Measure how near stored weights are to base + scale·B·A, whatever tool merged and however it rounded them.

`pipeline.models.merging.judge` checks Quench's own merge to within one rounding. Other tools sum in 16 bits,
and a level of a GGUF has its noise in addition. So here the update is estimated from everything that changed:
its strength is a projection, over which the noise of single weights averages out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

from pipeline.gguf.safetensors_rows import DTYPES, Entry, read_rows, same_values
from pipeline.models.merging.compute import Job, Rows, round_once
from pipeline.models.merging.nf4 import Nf4

# Rounding to bfloat16, the coarsest type of a merged model, as a share of a weight.
ROUNDED = 2.0**-9
# Share of an update that arithmetic in 16 bits may lose, and how far its strength may be from 1.
TOLERANCE = 0.25
SUMMED = 0.05  # share of an update's length that its own rounding may remove
HIDDEN = 0.1  # standard error from which on a strength is not informative


@dataclass(frozen=True)
class Fit:
    """Sums over a tensor's numbers, in float64: `source` and `update` (the expected one) squared, `shared` of
    the update times what changed, `left` of the squared distance from the expected values; and the `count` of
    numbers.
    """

    source: float = 0.0
    update: float = 0.0
    shared: float = 0.0
    left: float = 0.0
    count: int = 0

    def __add__(self, other: "Fit") -> "Fit":
        """Return the sums over both tensors."""
        return Fit(
            self.source + other.source,
            self.update + other.update,
            self.shared + other.shared,
            self.left + other.left,
            self.count + other.count,
        )

    @property
    def strength(self) -> float | None:
        """Share of the update in the weights: 1 if it was merged once, 0 if not; None if rounding leaves
        nothing of it.
        """
        return self.shared / self.update if self.update else None

    @property
    def rest(self) -> float:
        """Distance from the expected values, as a share of the source's length."""
        if self.source:
            return sqrt(self.left / self.source)
        return inf if self.left else 0.0

    @property
    def size(self) -> float:
        """Length of the update as a share of the source's."""
        return sqrt(self.update / self.source) if self.source else 0.0

    @property
    def unexplained(self) -> float:
        """Part of `rest` that no other strength of the update explains."""
        if self.strength is None:
            return self.rest
        return sqrt(max(0.0, self.rest**2 - ((1 - self.strength) * self.size) ** 2))

    def error(self, noise: float) -> float:
        """Return the strength's standard error with `noise`, a share of the source's length, on weights."""
        return noise / self.size / sqrt(self.count) if self.size else inf

    def is_scaled(self, noise: float = ROUNDED) -> bool:
        """Return True if another strength of the update explains the weights except for this noise."""
        return self.strength is not None and self.unexplained <= noise * (1 + self.size) + SUMMED * self.size

    def is_near(self, noise: float = ROUNDED) -> bool:
        """Return True if the weights are as expected except for this noise."""
        near = self.rest <= TOLERANCE * self.size + noise
        if self.strength is None or self.error(noise) > HIDDEN:
            return near
        return near and abs(self.strength - 1) <= TOLERANCE


def fit_of(start: Any, expected: Any, stored: Any) -> Fit:
    """Return the sums over rows of float64: the values before, the expected values and the stored ones."""
    change = expected - start
    return Fit(
        float(start.square().sum()),
        float(change.square().sum()),
        float((change * (stored - start)).sum()),
        float((stored - expected).square().sum().nan_to_num(nan=inf)),
        start.numel(),
    )


def nearest(fits: Iterable[Fit]) -> Fit:
    """Return the fit with the least rest."""
    return min(fits, key=lambda fit: fit.rest)


def same_bytes(entry: Entry, other: Entry) -> bool:
    """Return True if two tensors contain the same values in the same type. This is quicker than a fit."""
    return entry.dtype == other.dtype and same_values(entry, other)


def merge_fit(job: Job, merged: Entry, nf4: Nf4 | None = None) -> Fit:
    """Return how near `merged` is to the result of `job`.

    `nf4` is the quantization of the job's source if it is `quantized`.

    The update is rounded to the merged model's type or to the base's, in which some tools sum: an update
    smaller than half a unit in the last place is lost there.
    """
    import torch

    if job.update is None and not job.quantized and same_bytes(job.source, merged):
        return Fit(source=1.0, count=job.source.rows * job.source.columns)
    rows = Rows(job, nf4)
    kinds = sorted({merged.dtype, job.source.dtype})
    fits = {kind: Fit() for kind in kinds}
    for first, last in rows.spans():
        start = rows.start(first, last)
        total = rows.total(start, first, last) if job.update else start
        stored = read_rows(merged, first, last).double()
        for kind in kinds:
            expected = round_once(total.clone(), getattr(torch, DTYPES[kind][1])).double()
            fits[kind] += fit_of(start, expected, stored)
    return nearest(fits.values())
