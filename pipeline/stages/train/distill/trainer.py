"""Trainer of distillation: batches with the teacher's answers, a loss that is a mean over the step."""

from typing import Any

import torch

from pipeline.chat.tokens import IGNORED
from pipeline.core.errors import DataError
from pipeline.models.distill_loss import distill_loss, followed
from pipeline.stages.train.dataset import Collator, for_the_model
from pipeline.stages.train.distill.cache import Answers
from pipeline.stages.train.invariants import check_not_repacked
from pipeline.stages.train.loop import Trainer
from pipeline.stages.train.monitoring.samples import undisturbed
from pipeline.stages.train.step_stats import Batch, Figures, Sums


class DistillCollator:
    """Collator that adds the teacher's answers to `plain`'s batches. `trained_tokens` counts all positions
    with an answer.
    """

    def __init__(self, plain: Collator, answers: Answers) -> None:
        self.plain = plain
        self.answers = answers

    def __call__(self, examples: list[dict[str, Any]]) -> Batch:
        """Return `plain`'s batch with teacher_ids (P, k) and teacher_logs (P, k + 1).

        Raises `DataError` for other rows.
        """
        batch = self.plain(examples)
        answers = [self.answers.of(example["row"]) for example in examples]
        ids, logs = zip(*answers, strict=True)
        batch["teacher_ids"] = _joined(ids)
        batch["teacher_logs"] = _joined(logs)
        batch.pop("weights", None)  # Distillation has no use for rewards.
        batch["trained_tokens"] = len(batch["teacher_ids"])
        batch["items"] = len(batch["teacher_ids"])
        if int(followed(batch["position_ids"]).sum()) != batch["items"]:
            raise DataError(
                "Q-TRAIN-019",
                f"the original answered to other rows than {batch['rows']}: start again with `python -m "
                "pipeline train --no-resume`",
            )
        return batch


class DistillTrainer(Trainer):
    """Trainer with the loss (1 − w) · KL + w · cross entropy, means over the step.

    The weight w is `train.sft_weight`.
    """

    answered = 1  # the assistant's tokens in the optimizer step

    def optimizer_step(self, micro_batches: list[Batch]) -> dict[str, float]:
        """Run one optimizer step. The assistant's tokens of its micro-batches are counted first."""
        self.answered = answered_in(micro_batches)
        return super().optimizer_step(micro_batches)

    def losses(self, model: Any, inputs: Batch, items: Any) -> tuple[torch.Tensor, Sums]:
        """Return a batch's share of a mean over `items` positions and the step's tokens of the assistant."""
        weight = self.settings.sft_weight
        return distill_loss(model, for_the_model(inputs), weight, items, max(self.answered, 1)), {}

    def held_out_metrics(self) -> dict[str, Any]:
        """Return the same loss over all held-out rows, as if they were one step."""
        positions = sum(batch["items"] for batch in self.held_out)
        counted = self.answered
        self.answered = answered_in(self.held_out)

        def measure(batch: Batch) -> Figures:
            return [float(self.loss_over(batch, positions)[0])], {}

        with undisturbed(self.model):
            figures = self.reducer.figures_of(self, self.held_out, measure)
        self.answered = counted
        check_not_repacked(self.model)
        return {"eval_loss": sum(loss for (loss,), _ in figures)}


def answered_in(batches: list[Batch]) -> int:
    """Count the assistant's tokens in batches."""
    return sum(int((batch["labels"][:, 1:] != IGNORED).sum()) for batch in batches)


def _joined(pieces: tuple[Any, ...]) -> torch.Tensor:
    """Return arrays one below the other. A single one stays a view, so that it stays on disk until needed."""
    tensors = [torch.from_numpy(piece) for piece in pieces]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
