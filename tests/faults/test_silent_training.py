"""Failures that training would go through in silence, each planted by one mutation of a small run and named
by what watches it.

The run here is the bookkeeping of one alone (order of rows, metrics log, resume, figures per step): what
watches sees no more of a real one.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from training_logs import Row, healthy_run

from pipeline.config.params import load_params
from pipeline.core.metrics_log import MetricsLog
from pipeline.stages.train.learner import monitor_of
from pipeline.stages.train.monitoring.epochs import epochs_complete

ROOT = Path(__file__).resolve().parent.parent.parent
SETTINGS = load_params(ROOT / "recipes" / "qwen2.5-7b-8gb.yaml").training
PACKED, EPOCHS, PER_STEP = 20, 4, 2  # 10 steps an epoch
STEPS = PACKED * EPOCHS // PER_STEP
FIGURES = [row for row in healthy_run(STEPS, 1.8, 0.7, noise=0.02) if row["kind"] == "step"]


@dataclass(frozen=True)
class Trainer:
    """A run that can be killed and gone on with; every field is a place where one of the failures lives."""

    seed: int = 42
    seed_after_resume: int = 42  # of the row order
    skips: int = 0  # batches left out after a resume, on top of those that were trained
    truncates: bool = True
    mutate: Callable[[Row], Row] = dict

    def order(self, seed: int) -> list[list[int]]:
        """The packed rows of every step."""
        chance = random.Random(seed)  # noqa: S311
        epochs = [chance.sample(range(PACKED), PACKED) for _ in range(EPOCHS)]
        return [epoch[start : start + PER_STEP] for epoch in epochs for start in range(0, PACKED, PER_STEP)]

    def go(self, path: Path, checkpoint: int | None, killed_after: int = STEPS) -> Iterator[Row]:
        """Train from `checkpoint` (None: from the start) to `killed_after`, writing the metrics log."""
        metrics_log, done = MetricsLog(path), checkpoint or 0
        if checkpoint is not None and self.truncates:
            metrics_log.truncate(after_step=checkpoint)
        plan = self.order(self.seed if checkpoint is None else self.seed_after_resume)
        plan = plan[:done] + plan[done + (self.skips if checkpoint is not None else 0) :]
        for step in range(done + 1, min(killed_after, len(plan)) + 1):
            row = FIGURES[step - 1] | {
                "step": step,
                "epoch": step * PER_STEP / PACKED,
                "rows": plan[step - 1],
            }
            row = self.mutate(row)
            metrics_log.append(row)
            yield row
        metrics_log.close()


def found(trainer: Trainer, path: Path, checkpoint: int, killed_after: int) -> list[str]:
    """What is said of a run that was killed and resumed: the warnings and failures of its health, and the
    faults of its order.
    """
    monitor, output = monitor_of(STEPS, SETTINGS), []
    for row in trainer.go(path, None, killed_after):
        monitor.see(row)
    monitor = monitor_of(STEPS, SETTINGS)
    monitor.restore(row for row in MetricsLog(path).rows() if row["step"] <= checkpoint)
    for row in trainer.go(path, checkpoint):
        output += monitor.see(row)
    monitoring = [
        f"{finding.verdict} {finding.name} at {finding.step}: {finding.remedy}" for finding in output
    ]
    return monitoring + epochs_complete(MetricsLog(path).rows(), PACKED)


@pytest.mark.parametrize("seed", range(5))
def test_clean_runs_raise_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    killed_after = chance.randint(1, STEPS - 1)
    assert (
        found(Trainer(seed, seed), tmp_path / "steps.jsonl", chance.randint(0, killed_after), killed_after)
        == []
    )


def at(step: int, **changed: Any) -> Callable[[Row], Row]:
    """From `step` on, the run's figures with one fault."""
    return lambda row: row | changed if row["step"] >= step else row


NAN = math.nan
FAILURES = {
    "resume repeats rows: the metrics log is not cut back": (
        Trainer(truncates=False),
        "the metrics log, step 25, 26, 27: repeated",
    ),
    "resume skips rows": (Trainer(skips=1), "epoch 3, packed row"),
    "resume shuffles again": (Trainer(seed_after_resume=43), "repeated"),
    "resume starts the epoch again": (
        Trainer(
            mutate=lambda row: (
                row | {"rows": Trainer().order(42)[row["step"] - 5]} if row["step"] >= 25 else row
            )
        ),
        "epoch 3, packed row",
    ),
    "the labels are all masked": (
        Trainer(mutate=at(26, trained_tokens=0, loss=0.0)),
        "fail zero loss at 26: a masking or packing fault",
    ),
    "masked, with a loss all the same": (
        Trainer(mutate=at(26, trained_tokens=0)),
        "fail trained tokens at 26: the labels are masked throughout",
    ),
    "a forward fault": (
        Trainer(mutate=at(26, loss=NAN, grad_norm=NAN)),
        "fail finite loss at 26: a forward fault",
    ),
    "a backward fault": (
        Trainer(mutate=at(26, grad_norm=NAN)),
        "fail finite gradient at 26: a backward fault",
    ),
    "no gradient any more": (Trainer(mutate=at(26, grad_norm=0.0)), "warn zero gradient at 26"),
    "the step size explodes": (Trainer(mutate=at(26, grad_norm=3000.0)), "warn gradient alarm at 26"),
    "the machine swaps": (
        Trainer(mutate=at(26, tokens_per_second=9.0)),
        "warn speed at 28: the machine swaps",
    ),
}


@pytest.mark.parametrize(("trainer", "words"), FAILURES.values(), ids=FAILURES)
def test_each_failure_is_named(tmp_path: Path, trainer: Trainer, words: str) -> None:
    output = found(trainer, tmp_path / "steps.jsonl", checkpoint=24, killed_after=27)
    assert any(words in sentence for sentence in output), output


def test_frozen_weights_are_named_in_the_first_step(tmp_path: Path) -> None:
    monitor = monitor_of(STEPS, SETTINGS)
    (row, *_) = Trainer(mutate=at(1, grad_norm=0.0)).go(tmp_path / "steps.jsonl", None, 1)
    (finding,) = monitor.see(row)
    assert (finding.verdict, finding.name) == ("fail", "zero gradient")
    assert "frozen weights" in finding.remedy


@pytest.mark.parametrize("torn", range(0, 200, 23))
def test_a_torn_metrics_log_costs_no_row(tmp_path: Path, torn: int) -> None:
    """The kill comes in the middle of a line; the resumed run still has every row once."""
    path = tmp_path / "steps.jsonl"
    list(Trainer().go(path, None, 27))
    path.write_bytes(path.read_bytes()[: -torn - 1])
    list(Trainer().go(path, 24))
    assert epochs_complete(MetricsLog(path).rows(), PACKED) == []
    assert len(MetricsLog(path).rows()) == STEPS
