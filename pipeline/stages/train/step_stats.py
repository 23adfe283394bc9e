"""What one optimizer step was made of, for the metrics log."""

import time
from typing import Any

import torch

from pipeline.models.chunked_loss import at_trained

Batch = dict[str, Any]
Sums = dict[str, tuple[Any, int]]  # by name: a sum (a scalar tensor), and of how many values
Figures = tuple[list[float], Sums]  # of a batch: its losses, and what else is measured of it


class Measures:
    """Means of what a method measures beside its loss, from sums of micro-batches."""

    def __init__(self) -> None:
        self.sums: Sums = {}

    def add(self, sums: Sums) -> None:
        """Count the sums of a micro-batch."""
        for name, (total, count) in sums.items():
            before, counted = self.sums.get(name, (0.0, 0))
            self.sums[name] = before + total.detach(), counted + count

    def record(self, items: int) -> dict[str, Any]:
        """`measures`, the mean by name, and `items`, for a row of the metrics log; {} if not measured."""
        means = {name: float(total) / count for name, (total, count) in self.sums.items() if count}
        return {"items": items, "measures": means} if means else {}


class StepStats:
    """What one optimizer step was made of, micro-batch by micro-batch."""

    def __init__(self, batches: int = 0) -> None:
        self.batches = batches  # micro-batches that are done, of other processes too
        self.rows: list[int] = []
        self.row_ids: list[str] = []
        self.tokens = self.trained_tokens = 0
        self.items = 0  # what the loss is a mean over
        self.weightless = True  # every token that is trained weighs 0, by its chat's reward
        self.loss_sum: Any = 0.0  # over all items
        self.measures = Measures()
        self.started = time.monotonic()

    def add(self, batch: Batch, loss_sum: torch.Tensor, measures: "Sums | None" = None) -> None:
        """Count a micro-batch; `loss_sum` is a scalar, `measures` are what else its method measures."""
        self.batches += 1
        self.items += batch["items"]
        weights = batch.get("weights")
        self.weightless &= weights is not None and not bool(at_trained(weights, batch["labels"]).any())
        self.measures.add(measures or {})
        self.rows += batch["rows"]
        self.row_ids += batch["row_ids"]
        self.tokens += batch["input_ids"].numel()
        self.trained_tokens += batch["trained_tokens"]
        self.loss_sum = self.loss_sum + loss_sum.detach()  # stays on the device: no wait for the GPU here
