"""What is recorded and printed of a run while it goes: the metrics log, TensorBoard, the monitoring rules, a
line now and then where there is no terminal.
"""

import math
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from pipeline.core.checks import refuse
from pipeline.core.errors import GateError
from pipeline.core.metrics_log import MetricsLog
from pipeline.models.runtime import give_back_holes, memory_used
from pipeline.stages.train.monitoring.monitor import Monitor
from pipeline.stages.train.randomness import random_state
from pipeline.stages.train.step_stats import StepStats
from pipeline.stages.train.trainer import QuenchTrainer

# the metrics log's field → its name in TensorBoard
STEP_CURVES = {
    "loss": "loss",
    "learning_rate": "learning_rate",
    "grad_norm": "gradient_norm",
    "tokens_per_second": "tokens_per_second",
    "trained_tokens": "trained_tokens",
    "memory_bytes": "memory_bytes",
}
TRIMMED_EVERY = 2  # forwards: after five the holes had grown by 0.4 GB of 3.8, after 16 by 2.3 of 5.8
SAME_LOSS = 1e-4  # relative; float32 sums in another order


class Board:
    """Events below `folder`; with `purge_step`, what an interrupted run wrote from there on is hidden."""

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # 0 for a first run: TensorBoard takes the second start that it reads as a restart, and hides nothing
        # without a first one
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge_step or 0)  # type: ignore[no-untyped-call]

    def step(self, row: dict[str, Any]) -> None:
        """One point of each curve, and of what the method measures beside its loss."""
        for field, name in STEP_CURVES.items():
            self._writer.add_scalar(name, row[field], row["step"])
        for name, value in row.get("measures", {}).items():
            self._writer.add_scalar(name, value, row["step"])
        # else a kill would lose the last two minutes, and a resumed run has no second chance to write them
        self._writer.flush()

    def evaluation(self, row: dict[str, Any]) -> None:
        """The loss on the held-out rows, what else is measured of them, and the samples as text."""
        self._writer.add_scalar("eval_loss", row["eval_loss"], row["step"])
        for name, value in row.get("measures", {}).items():
            self._writer.add_scalar(f"eval_{name}", value, row["step"])
        for number, sample in enumerate(row["samples"], start=1):
            words = "\n\n".join(
                f"**{title}**\n\n{_verbatim(sample[title])}" for title in ("prompt", "reference", "answer")
            )
            self._writer.add_text(f"sample_{number}", words, row["step"])
        self._writer.flush()


def _verbatim(text: str) -> str:
    """As a Markdown code block: what a model says is shown, never rendered."""
    return "\n".join(f"    {line}" for line in text.split("\n"))


def loss_text(loss: float) -> str:
    """Three decimals, or three digits of what is smaller: a distilled level is hundredths of a nat away."""
    return f"{loss:.3f}" if loss >= 0.1 else f"{loss:.3g}"


class StepCallback(TrainerCallback):  # type: ignore[misc]
    """Keeps each step's statistics and random state. Set `trainer` once it is made."""

    trainer: QuenchTrainer
    forwards = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Start the step's statistics; evaluations and checkpoints in between don't count for its speed."""
        self._before_forward()
        self.trainer.stats = StepStats()

    def on_substep_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Another forward of the same step comes."""
        self._before_forward()

    def _before_forward(self) -> None:
        # with a GPU a step's tensors are there, and looking through main memory for holes would hold it up
        if self.forwards % TRIMMED_EVERY == 0 and self.trainer.args.device.type == "cpu":
            give_back_holes()
        self.forwards += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Keep the random state for a checkpoint of this step; have the last step evaluated always."""
        self.trainer.after_step = random_state()
        if state.global_step >= state.max_steps and self.trainer.held_out:
            control.should_evaluate = True


class MetricsCallback(StepCallback):
    """Writes every step and evaluation down, and stops the run where a monitoring rule fails."""

    def __init__(self, metrics_log: MetricsLog, board: Board, monitor: Monitor) -> None:
        self.metrics_log, self.board, self.monitor = metrics_log, board, monitor

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Start the clock of the run: evaluations, checkpoints and rollouts count for what is left of it."""
        self.began, self.first = time.monotonic(), state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **rest: Any) -> None:
        """Write the step down."""
        if "loss" not in logs:
            return
        stats = self.trainer.stats
        seconds = time.monotonic() - stats.started
        row = {
            "kind": "step",
            "step": state.global_step,
            "epoch": round(state.epoch, 6),
            "loss": logs["loss"],
            "learning_rate": logs["learning_rate"],
            "grad_norm": logs["grad_norm"],
            "tokens": stats.tokens,
            "trained_tokens": stats.trained_tokens,
            "rows": stats.rows,
            "row_ids": stats.row_ids,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(stats.tokens / seconds, 1),
            "memory_bytes": memory_used(),
            **({"processes": self.trainer.group.count} if self.trainer.group else {}),
            **({"weightless": True} if stats.weightless else {}),
            **stats.measures.record(stats.items),
        }
        self.metrics_log.append(row)
        self.board.step(row)
        self.judge(row)
        check_mean(state.global_step, logs["loss"], float(stats.loss_sum), stats.items)
        tenth = max(1, state.max_steps // 10)
        if args.disable_tqdm and (state.global_step % tenth == 0 or state.global_step == 1):
            step_seconds = (time.monotonic() - self.began) / (state.global_step - self.first)
            left = (state.max_steps - state.global_step) * step_seconds
            print(
                f"train: step {state.global_step} of {state.max_steps}, loss {loss_text(row['loss'])}, "
                f"learning rate {row['learning_rate']:.1e}, "
                f"{row['tokens_per_second']:.0f} tokens/s, about {left:.0f} s left",
                flush=True,
            )

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, Any], **rest: Any) -> None:
        """Write the evaluation down."""
        row = {"kind": "eval", "step": state.global_step, **metrics}
        self.metrics_log.append(row)
        self.board.evaluation(row)
        self.judge(row)
        if args.disable_tqdm:
            print(
                f"train: step {state.global_step} of {state.max_steps}, loss on the held-out rows "
                f"{loss_text(row['eval_loss'])}",
                flush=True,
            )

    def judge(self, row: dict[str, Any]) -> None:
        """Print what the rules warn of. Raises `GateError` if one fails."""
        checks = self.monitor.see(row)
        refuse(checks)
        for check in checks:
            print(f"train: {check}", flush=True)


def check_mean(step: int, loss: float, loss_sum: float, items: int) -> None:
    """Raise `GateError` unless the step's loss is the mean over its trained tokens (or pairs, or positions),
    whatever the micro-batches were.

    Averaging the means of micro-batches weighs short rows more (the accumulation bug of 2024, transformers
    #34191).
    """
    mean = loss_sum / max(items, 1)
    if not math.isclose(loss, mean, rel_tol=SAME_LOSS, abs_tol=1e-6):
        raise GateError(
            "Q-TRAIN-018",
            f"the loss of step {step} is {loss:.6g}, but the mean over its {items} tokens or pairs "
            f"is {mean:.6g}: gradient accumulation weighs rows by their number, not by what is in "
            "them, which is a fault of the installed libraries; run `make setup`",
        )
