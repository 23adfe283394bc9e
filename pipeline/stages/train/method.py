"""Methods of training (`train.method`). `Learner` here is supervised training. grpo/method.py,
distill/method.py and preference/method.py subclass it.

Only the selected one is imported, by its name in `METHODS`. So a run's key contains no other method's code
(`pipeline.workflow.keys.code_keys`): an edit of GRPO's code trains no supervised run again.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from pipeline.config.methods import METHODS, Method
from pipeline.config.sections import Train
from pipeline.stages.train.monitoring.monitor import Monitor, RuleSets
from pipeline.stages.train.monitoring.rules import AT_END, EVERY_EVAL, EVERY_STEP
from pipeline.stages.train.run import Run


class TrainerParts(NamedTuple):
    """Collators for training and held-out rows, and what makes the trainer: its class or a partial of it."""

    collate: Any
    collate_held_out: Any
    trainer: Any


@dataclass
class Learner:
    """Supervised training in `run`, and the base class of all other training methods. `before` is the loss on
    held-out rows before the first step, if it was measured.
    """

    run: Run
    before: float | None = field(default=None, init=False)

    rules: ClassVar[RuleSets] = RuleSets(EVERY_STEP, EVERY_EVAL, AT_END)

    @contextmanager
    def ready(self, *, replay: bool = False) -> Iterator[None]:
        """Keep ready, during the body, what the method needs in addition to rows.

        With `replay` GRPO draws nothing.
        """
        yield

    def trainer_parts(self, collate: Any, rows: Any, held_out: Any) -> TrainerParts:
        """Return the method's collators, which wrap the plain `collate`, and its trainer."""
        from pipeline.stages.train.loop import Trainer

        return TrainerParts(collate, collate, Trainer)

    def measure_before(self, trainer: Any) -> None:
        """Measure what the report says about the model before its first step, unless the run resumes.

        It is how well the model knows the held-out rows if training goes on from what was trained before.
        """
        if self.run.previous is not None and not METHODS[self.run.settings.method].prompts:
            from pipeline.stages.train.invariants import BEFORE, held_out_before

            self.before = held_out_before(trainer, self.run.checkpoints / BEFORE)

    def figures(self, rows: list[dict[str, Any]], evaluation: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts of reports/train.json that not every run has. `rows` is the metrics log,
        `evaluation` its last evaluation of the adapter that is kept.
        """
        return {} if self.before is None else {"eval_loss_before": self.before}


def learner_of(method: Method) -> type[Learner]:
    """Return the learner class of a method."""
    learner: type[Learner] = import_module(f"pipeline.stages.train.{METHODS[method].module}").LEARNER
    return learner


def monitor_of(max_steps: int, settings: Train) -> Monitor:
    """Return the monitor of a run of so many optimizer steps, with the rules of its method."""
    return Monitor(max_steps, settings, learner_of(settings.method).rules)


LEARNER = Learner
