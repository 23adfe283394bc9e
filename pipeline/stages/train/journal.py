"""Record of a run in progress: the metrics log, TensorBoard, the monitoring rules, and progress lines if
there is no terminal.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.core.checks import refuse
from pipeline.core.errors import GateError
from pipeline.core.metrics_log import MetricsLog
from pipeline.core.progress import JobProgress, current_record, terminal_bar
from pipeline.models.runtime import memory_used
from pipeline.stages.train.monitoring.monitor import Monitor
from pipeline.stages.train.step_stats import StepStats

# field of the metrics log → its name in TensorBoard
STEP_CURVES = {
    "loss": "loss",
    "learning_rate": "learning_rate",
    "grad_norm": "gradient_norm",
    "tokens_per_second": "tokens_per_second",
    "trained_tokens": "trained_tokens",
    "memory_bytes": "memory_bytes",
}
# Relative tolerance, because float32 sums may be made in another order.
SAME_LOSS = 1e-4


class Board:
    """TensorBoard events below `folder`. With `purge_step`, events that an interrupted run wrote from there
    on are hidden.
    """

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # 0 for a first run: TensorBoard treats the second start that it reads as a restart, and hides nothing
        # without a first one.
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge_step or 0)  # type: ignore[no-untyped-call]

    def step(self, row: dict[str, Any]) -> None:
        """Write one point of each curve, and of the method's measures in addition to its loss."""
        for field, name in STEP_CURVES.items():
            self._writer.add_scalar(name, row[field], row["step"])
        for name, value in row.get("measures", {}).items():
            self._writer.add_scalar(name, value, row["step"])
        # Otherwise a kill would lose the last two minutes, and a resumed run has no second chance to write
        # them.
        self._writer.flush()

    def evaluation(self, row: dict[str, Any]) -> None:
        """Write the loss on the held-out rows, their other measures, and the samples as text."""
        self._writer.add_scalar("eval_loss", row["eval_loss"], row["step"])
        for name, value in row.get("measures", {}).items():
            self._writer.add_scalar(f"eval_{name}", value, row["step"])
        for number, sample in enumerate(row["samples"], start=1):
            text = "\n\n".join(
                f"**{title}**\n\n{_verbatim(sample[title])}" for title in ("prompt", "reference", "answer")
            )
            self._writer.add_text(f"sample_{number}", text, row["step"])
        self._writer.flush()


def _verbatim(text: str) -> str:
    """Return a text as a Markdown code block, so that a model's output is shown and never rendered."""
    return "\n".join(f"    {line}" for line in text.split("\n"))


def loss_text(loss: float) -> str:
    """Format a loss with three decimals, or three digits if it is smaller: a distilled level is hundredths
    of a nat away.
    """
    return f"{loss:.3f}" if loss >= 0.1 else f"{loss:.3g}"


class Journal:
    """Journal of a run of `max_steps`. It records every step and evaluation, and stops the run if a
    monitoring rule fails. `board` is None if TensorBoard gets nothing. `of_run` is added to every step's row.
    """

    def __init__(
        self,
        metrics_log: MetricsLog,
        board: Board | None,
        monitor: Monitor,
        *,
        max_steps: int,
        of_run: Mapping[str, Any],
    ) -> None:
        self.metrics_log = metrics_log
        self.board = board
        self.monitor = monitor
        self.max_steps = max_steps
        self.of_run = of_run
        self.began = time.monotonic()
        self.first = 0
        self.show: Callable[[int], None] | None = None

    @contextmanager
    def begun(self, step: int) -> Iterator[None]:
        """Count from `step` while the body runs.

        Only steps after it count for the estimate of the time that is left.
        """
        self.began = time.monotonic()
        self.first = step
        with terminal_bar("train", self.max_steps) as self.show:
            yield

    def step(self, step: int, figures: dict[str, float], stats: StepStats) -> None:
        """Record a step. `figures` are epoch, loss, learning_rate, and grad_norm. Raises `GateError` if a
        monitoring rule fails or the loss is not the mean over the step.
        """
        seconds = time.monotonic() - stats.started
        row = {
            "kind": "step",
            "step": step,
            **figures,
            "epoch": round(figures["epoch"], 6),
            "tokens": stats.tokens,
            "trained_tokens": stats.trained_tokens,
            "rows": stats.rows,
            "row_ids": stats.row_ids,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(stats.tokens / seconds, 1),
            "memory_bytes": memory_used(),
            **self.of_run,
            **({"weightless": True} if stats.weightless else {}),
            **stats.measures.record(stats.items),
        }
        self.metrics_log.append(row)
        if self.board:
            self.board.step(row)
        self.judge(row)
        check_mean(step, figures["loss"], float(stats.loss_sum), stats.items)
        tenth = max(1, self.max_steps // 10)
        seconds_left = (self.max_steps - step) * (time.monotonic() - self.began) / (step - self.first)
        self._record(step, f", loss {loss_text(row['loss'])}", seconds_left)
        if self.show:
            self.show(step)
        elif step % tenth == 0 or step == 1:
            print(
                f"train: step {step} of {self.max_steps}, loss {loss_text(row['loss'])}, "
                f"learning rate {row['learning_rate']:.1e}, "
                f"{row['tokens_per_second']:.0f} tokens/s, about {seconds_left:.0f} s left",
                flush=True,
            )

    def evaluation_begins(self, step: int, batches: int) -> None:
        """Say that the held-out rows are evaluated, which may take longer than many steps."""
        self._record(step, ", evaluating", None)
        if self.show is None:
            print(
                f"train: step {step} of {self.max_steps}, evaluating {batches} batches of held-out rows and "
                "the sample answers",
                flush=True,
            )

    def evaluation(self, step: int, metrics: dict[str, Any]) -> None:
        """Record an evaluation of the held-out rows."""
        row = {"kind": "eval", "step": step, **metrics}
        self.metrics_log.append(row)
        if self.board:
            self.board.evaluation(row)
        self.judge(row)
        if self.show is None:
            print(
                f"train: step {step} of {self.max_steps}, loss on the held-out rows "
                f"{loss_text(row['eval_loss'])}",
                flush=True,
            )

    def _record(self, step: int, words: str, seconds_left: float | None) -> None:
        """Write the step, and `words` that tell more of it, to the job's record."""
        record = current_record()
        if record:
            progress = JobProgress.at_step(step, self.max_steps, words, seconds_left)
            record.write(progress, at_once=seconds_left is None)

    def judge(self, row: dict[str, Any]) -> None:
        """Print the rules' warnings. Raises `GateError` if one fails."""
        checks = self.monitor.see(row)
        refuse(checks)
        for check in checks:
            print(f"train: {check}", flush=True)


def check_mean(step: int, loss: float, loss_sum: float, items: int) -> None:
    """Raise `GateError` unless the step's loss is the mean over its trained tokens (or pairs, or positions),
    however they are split into micro-batches.

    Averaging the means of micro-batches gives short rows more weight (the accumulation bug of 2024,
    transformers #34191).
    """
    mean = loss_sum / max(items, 1)
    if not math.isclose(loss, mean, rel_tol=SAME_LOSS, abs_tol=1e-6):
        raise GateError(
            "Q-TRAIN-018",
            f"the loss of step {step} is {loss:.6g}, but the mean over its {items} tokens or pairs "
            f"is {mean:.6g}: gradient accumulation weighs rows by their number, not by what is in "
            "them, which is a fault of the installed libraries; run `make setup`",
        )
