"""A run's curves and samples as TensorBoard events: `tensorboard --logdir reports/tensorboard`."""

from pathlib import Path
from typing import Any

# the metrics log's field → its name in TensorBoard
STEP_CURVES = {
    "loss": "loss",
    "learning_rate": "learning_rate",
    "grad_norm": "gradient_norm",
    "tokens_per_second": "tokens_per_second",
    "trained_tokens": "trained_tokens",
    "memory_bytes": "memory_bytes",
}


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
        for number, found in enumerate(row["samples"], start=1):
            words = "\n\n".join(
                f"**{title}**\n\n{_verbatim(found[title])}" for title in ("prompt", "reference", "answer")
            )
            self._writer.add_text(f"sample_{number}", words, row["step"])
        self._writer.flush()


def _verbatim(text: str) -> str:
    """As a Markdown code block: what a model says is shown, never rendered."""
    return "\n".join(f"    {line}" for line in text.split("\n"))
