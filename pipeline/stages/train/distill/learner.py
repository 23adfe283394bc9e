"""Learning to answer as the file that the level was made from does."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from pipeline.stages.train.distill.rules import DISTILL_END, DISTILL_STEP
from pipeline.stages.train.learner import Learner, Learning
from pipeline.stages.train.monitoring.monitor import RuleSets
from pipeline.stages.train.monitoring.run_rules import EVERY_EVAL
from pipeline.stages.train.proofs import BEFORE, held_out_before


class DistillLearner(Learner):
    """Asks the original about every row, once."""

    rules: ClassVar[RuleSets] = RuleSets(DISTILL_STEP, EVERY_EVAL, DISTILL_END)
    teacher: Any
    before: float | None

    @contextmanager
    def prepared(self, *, replay: bool = False) -> Iterator[None]:
        """Have the original's answers."""
        from pipeline.stages.train.distill.teacher import ask_teacher

        self.teacher = ask_teacher(self.run)
        yield

    def learning(self, collate: Any, rows: Any, held_out: Any) -> Learning:
        """The collators that add the original's answers."""
        from pipeline.stages.train.distill.trainer import DistillCollator, DistillTrainer

        return Learning(
            DistillCollator(collate, self.teacher.train),
            DistillCollator(collate, self.teacher.val),
            DistillTrainer,
        )

    def measure_before(self, trainer: Any) -> None:
        """The divergence that distillation starts from."""
        self.before = held_out_before(trainer, self.run.checkpoints / BEFORE)

    def figures(self, rows: list[dict[str, Any]], evaluation: dict[str, Any]) -> dict[str, Any]:
        """The original's, and the divergence before."""
        return {"teacher": self.teacher.figures, "eval_loss_before": self.before}


LEARNER = DistillLearner
