"""Statistics of one optimizer step, for the metrics log."""

import time
from typing import Any

import torch

from pipeline.models.chunked_loss import at_trained

Batch = dict[str, Any]
Sums = dict[str, tuple[Any, int]]  # sum (a scalar tensor) and number of its values, by name
Figures = tuple[list[float], Sums]  # losses of a batch, and its other measures


class Measures:
    """Means of a method's measures in addition to its loss, from sums of micro-batches."""

    def __init__(self) -> None:
        self.sums: Sums = {}

    def add(self, sums: Sums) -> None:
        """Add the sums of a micro-batch."""
        for name, (total, count) in sums.items():
            before, counted = self.sums.get(name, (0.0, 0))
            self.sums[name] = before + total.detach(), counted + count

    def record(self, items: int) -> dict[str, Any]:
        """Return `measures`, the mean by name, and `items`, for the metrics log; {} if not measured."""
        means = {name: float(total) / count for name, (total, count) in self.sums.items() if count}
        return {"items": items, "measures": means} if means else {}


class StepStats:
    """Statistics of one optimizer step, added up over its micro-batches."""

    def __init__(self) -> None:
        self.batches = 0  # finished micro-batches, including those of other processes
        self.rows: list[int] = []
        self.row_ids: list[str] = []
        self.tokens = self.trained_tokens = 0
        self.items = 0  # number that the loss is a mean over
        self.weightless = True  # True if every trained token weighs 0, by its chat's reward
        self.loss_sum: Any = 0.0  # sum over all items
        self.measures = Measures()
        self.started = time.monotonic()

    def add(self, batch: Batch, loss_sum: torch.Tensor, measures: "Sums | None" = None) -> None:
        """Count a micro-batch. `loss_sum` is a scalar, `measures` are the method's other measures."""
        self.batches += 1
        self.items += batch["items"]
        weights = batch.get("weights")
        self.weightless &= weights is not None and not bool(at_trained(weights, batch["labels"]).any())
        self.measures.add(measures or {})
        self.rows += batch["rows"]
        self.row_ids += batch["row_ids"]
        self.tokens += batch["input_ids"].numel()
        self.trained_tokens += batch["trained_tokens"]
        # It stays on the device, to avoid waiting for the GPU.
        self.loss_sum = self.loss_sum + loss_sum.detach()
