"""Metrics logs of training runs for tests: healthy ones of many shapes, and the curve of a real demo run."""

import math
import random
from typing import Any

Row = dict[str, Any]
# loss and gradient norm (before clipping) of the 50 steps of a real run of the demo
DEMO = (
    (1.558, 1.134),
    (2.075, 1.638),
    (2.371, 1.913),
    (2.274, 1.755),
    (1.575, 1.299),
    (1.134, 1.485),
    (1.011, 1.538),
    (0.494, 0.969),
    (0.253, 0.883),
    (0.334, 1.182),
    (0.401, 1.987),
    (0.245, 1.090),
    (0.106, 0.465),
    (0.166, 0.767),
    (0.077, 0.515),
    (0.214, 1.524),
    (0.098, 0.475),
    (0.096, 0.386),
    (0.085, 0.352),
    (0.098, 0.605),
    (0.082, 0.460),
    (0.051, 0.246),
    (0.165, 0.577),
    (0.123, 0.438),
    (0.058, 0.357),
    (0.067, 0.431),
    (0.067, 0.286),
    (0.199, 0.631),
    (0.037, 0.270),
    (0.057, 0.292),
    (0.136, 0.695),
    (0.083, 0.425),
    (0.052, 0.228),
    (0.050, 0.223),
    (0.142, 0.479),
    (0.106, 0.351),
    (0.223, 0.522),
    (0.124, 0.331),
    (0.088, 0.384),
    (0.041, 0.330),
    (0.043, 0.385),
    (0.052, 0.238),
    (0.098, 0.291),
    (0.087, 0.320),
    (0.048, 0.224),
    (0.122, 0.833),
    (0.093, 0.254),
    (0.044, 0.226),
    (0.089, 0.260),
    (0.038, 0.148),
)


def step_row(
    step: int,
    loss: float,
    grad_norm: float = 0.8,
    *,
    per_epoch: int = 25,
    learning_rate: float = 2e-4,
    speed: float = 150.0,
) -> Row:
    """One step of the metrics log, with the fields that every step has."""
    return {
        "kind": "step",
        "step": step,
        "epoch": step / per_epoch,
        "loss": loss,
        "learning_rate": learning_rate,
        "grad_norm": grad_norm,
        "tokens": 1024 * step,
        "trained_tokens": 400,
        "rows": [(step - 1) % per_epoch],
        "row_ids": [[f"chat-{step}"]],
        "seconds": 1024 / speed,
        "tokens_per_second": speed,
        "memory_bytes": 3_400_000_000,
    }


def eval_row(step: int, eval_loss: float) -> Row:
    """One evaluation of the metrics log."""
    return {"kind": "eval", "step": step, "eval_loss": eval_loss, "samples": [], "seconds": 1.5}


def demo_run() -> list[Row]:
    """The demo's real curve as a metrics log, with two evaluations."""
    rows = [step_row(step, loss, norm, learning_rate=1e-3) for step, (loss, norm) in enumerate(DEMO, start=1)]
    return [*rows[:25], eval_row(25, 0.094), *rows[25:], eval_row(50, 0.081)]


def healthy_run(
    steps: int, start: float, end: float, seed: int = 0, noise: float = 0.15, scale: float = 0.2
) -> list[Row]:
    """A loss from `start` to `end` that decays over `scale` of the run under noise, gradients that go with
    it, ten evaluations.
    """
    chance = random.Random(seed)  # noqa: S311
    rows: list[Row] = []
    for step in range(1, steps + 1):
        loss = end + (start - end) * math.exp(-step / (scale * steps))
        norm = min(8.0, max(0.3, 1.2 * loss * chance.lognormvariate(0, 0.3)))
        if chance.random() < 0.02:
            norm = 40.0  # one odd batch
        rows.append(
            step_row(step, loss * chance.uniform(1 - noise, 1 + noise), norm, speed=chance.uniform(110, 190))
        )
        if step % max(1, steps // 10) == 0:
            rows.append(eval_row(step, 1.1 * loss * chance.uniform(0.995, 1.005)))
    return rows
