"""Method that learns to answer like the file that the level was made from.

The loss is a divergence (nats) that is small from the start, and so is its gradient. No range is usual there,
only falling is.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from pipeline.core.checks import Check
from pipeline.stages.train.invariants import BEFORE, held_out_before
from pipeline.stages.train.method import Learner, TrainerParts
from pipeline.stages.train.monitoring.monitor import WINDOW, History, RuleSets, median, passed, unknown
from pipeline.stages.train.monitoring.rules import EVERY_EVAL, EVERY_STEP, OTHER_LOSSES, falling, zero_loss


def end_loss(run: History) -> Check:
    """Report the divergence in the last steps, for information."""
    if not run.losses:
        return unknown("no step yet")
    loss = median(run.losses[-WINDOW:])
    weight = run.settings.sft_weight
    mixed = f", with {weight:.0%} of the usual loss on what the assistant says" if weight else ""
    return passed(f"{loss:.3g} in the last steps: nats between the level's answers and the original's{mixed}")


STEP = {
    **EVERY_STEP,
    **OTHER_LOSSES,
    "zero loss": zero_loss(
        "the level answers just as the file it was made from: name a lower one as base.level"
    ),
}
END = {
    "falling loss": falling(
        "nothing is recovered: raise train.r, train.learning_rate or the steps, or the level is as near to "
        "its original as it gets"
    ),
    "end loss": end_loss,
}


class DistillLearner(Learner):
    """Method that queries the original about every row, once."""

    rules: ClassVar[RuleSets] = RuleSets(STEP, EVERY_EVAL, END)
    teacher: Any

    @contextmanager
    def ready(self, *, replay: bool = False) -> Iterator[None]:
        """Load or compute the original's answers."""
        from pipeline.stages.train.distill.teacher import ask_teacher

        self.teacher = ask_teacher(self.run)
        yield

    def trainer_parts(self, collate: Any, rows: Any, held_out: Any) -> TrainerParts:
        """Return the collators that add the original's answers."""
        from pipeline.stages.train.distill.trainer import DistillCollator, DistillTrainer

        return TrainerParts(
            DistillCollator(collate, self.teacher.train),
            DistillCollator(collate, self.teacher.val),
            DistillTrainer,
        )

    def measure_before(self, trainer: Any) -> None:
        """Measure the divergence that distillation starts from."""
        self.before = held_out_before(trainer, self.run.checkpoints / BEFORE)

    def figures(self, rows: list[dict[str, Any]], evaluation: Mapping[str, Any]) -> dict[str, Any]:
        """Return the original's figures, and the divergence before."""
        return {"teacher": self.teacher.figures, "eval_loss_before": self.before}


LEARNER = DistillLearner
