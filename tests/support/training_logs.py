"""Metrics logs of training runs for tests: healthy ones of many shapes, and the curve of a real demo run; and
checkpoints of a kilobyte.
"""

import json
import math
import random
from pathlib import Path
from typing import Any

from pipeline.stages.train.checkpoints import publish_checkpoint

Row = dict[str, Any]
# loss and gradient norm (before clipping) of the 50 steps of a real run of the demo
CURVE = Path(__file__).parents[1] / "recorded" / "demo_curve.csv"


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
    _, *steps = CURVE.read_text(encoding="utf-8").splitlines()
    figures = [[float(figure) for figure in line.split(",")] for line in steps]
    rows = [step_row(step, *two, learning_rate=1e-3) for step, two in enumerate(figures, start=1)]
    return [*rows[:25], eval_row(25, 0.094), *rows[25:], eval_row(50, 0.081)]


def healthy_run(
    steps: int, start: float, end: float, seed: int = 0, noise: float = 0.15, scale: float = 0.2
) -> list[Row]:
    """A noisy loss decaying from `start` to `end` over `scale` of the run, its gradients, ten evaluations."""
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


def checkpoint(folder: Path, step: int, best: int | None = None, run: str | None = None) -> Path:
    """A published checkpoint of a run, which says at what step it was best so far."""
    written, made = folder / ".writing" / f"checkpoint-{step}", folder / f"checkpoint-{step}"
    written.mkdir(parents=True)
    (written / "weights").write_bytes(bytes([step]) * 1000)
    if best:
        (written / "trainer_state.json").write_text(json.dumps({"best_global_step": best}))
    publish_checkpoint(written, made, {"step": step, "run": run})
    return made
