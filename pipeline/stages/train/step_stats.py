"""What one optimizer step was made of, for the metrics log."""

import time
from typing import Any

import torch

Batch = dict[str, Any]


class StepStats:
    """What one optimizer step was made of, micro-batch by micro-batch."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.row_ids: list[str] = []
        self.tokens = self.trained_tokens = 0
        self.loss_sum: Any = 0.0  # of the cross entropies of all trained tokens
        self.started = time.monotonic()

    def add(self, batch: Batch, loss_sum: torch.Tensor) -> None:
        """Count a micro-batch; `loss_sum` is a scalar."""
        self.rows += batch["rows"]
        self.row_ids += batch["row_ids"]
        self.tokens += batch["input_ids"].numel()
        self.trained_tokens += batch["trained_tokens"]
        self.loss_sum = self.loss_sum + loss_sum.detach()  # stays on the device: no wait for the GPU here
