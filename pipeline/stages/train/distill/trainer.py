"""The trainer of distillation: batches that know the teacher's answers, and a loss that is a mean over all
positions of the optimizer step.
"""

from typing import Any

import torch

from pipeline.chat.tokens import IGNORED
from pipeline.core.errors import DataError
from pipeline.models.distill_loss import distill_loss, followed
from pipeline.models.tuners import causal_model
from pipeline.stages.train.dataset import NOT_FOR_THE_MODEL, Collator
from pipeline.stages.train.distill.cache import Answers
from pipeline.stages.train.monitoring.samples import undisturbed
from pipeline.stages.train.proofs import check_not_repacked
from pipeline.stages.train.step_stats import Batch
from pipeline.stages.train.trainer import QuenchTrainer


class DistillCollator:
    """`plain`'s batches with the teacher's answers to their rows; `trained_tokens` are all positions at which
    there is one.
    """

    def __init__(self, plain: Collator, answers: Answers) -> None:
        self.plain, self.answers = plain, answers

    def __call__(self, examples: list[dict[str, Any]]) -> Batch:
        """What `plain` gives, and teacher_ids (P, k), teacher_logs (P, k + 1). Raises `DataError` where the
        answers are other rows'.
        """
        batch = self.plain(examples)
        ids, logs = zip(*(self.answers.of(example["row"]) for example in examples), strict=True)
        batch["teacher_ids"], batch["teacher_logs"] = _joined(ids), _joined(logs)
        batch["trained_tokens"] = len(batch["teacher_ids"])
        if int(followed(batch["position_ids"]).sum()) != batch["trained_tokens"]:
            raise DataError(
                "Q-TRAIN-019",
                f"the original answered to other rows than {batch['rows']}: start again with `python -m "
                "pipeline train --no-resume`",
            )
        return batch


class DistillTrainer(QuenchTrainer):
    """Trains with (1 − w) · KL + w · cross entropy, where w is `sft_weight`: each is a mean over the entire
    optimizer step.
    """

    def __init__(self, *, sft_weight: float, **rest: Any) -> None:
        super().__init__(**rest)
        self.sft_weight = sft_weight
        self.answered: Any = 1  # the assistant's tokens in the optimizer step, as the library counts them

    def get_batch_samples(self, *arguments: Any, **more: Any) -> tuple[list[Batch], Any]:
        """The optimizer step's batches, and the positions in all of them."""
        batches, answered = super().get_batch_samples(*arguments, **more)
        if not batches:
            return batches, answered
        self.answered = answered.clamp(min=1)
        return batches, torch.tensor(
            sum(batch["trained_tokens"] for batch in batches), device=answered.device
        )

    def loss_over(self, model: Any, inputs: Batch, tokens: Any) -> torch.Tensor:
        """A batch's share of the loss of an optimizer step of `tokens` positions: a scalar."""
        return self.share(model, inputs, tokens, self.answered)

    def share(self, model: Any, inputs: Batch, positions: Any, answered: Any) -> torch.Tensor:
        """A batch's share of a loss that is a mean over `positions` positions and `answered` tokens of the
        assistant.
        """
        tensors = {name: value for name, value in inputs.items() if name not in NOT_FOR_THE_MODEL}
        with self.accelerator.autocast():
            loss: torch.Tensor = distill_loss(
                causal_model(self.accelerator.unwrap_model(model)),
                tensors,
                self.sft_weight,
                positions,
                answered,
            )
        return loss

    def held_out_loss(self) -> float:
        """The same loss over all held-out rows."""
        positions = sum(batch["trained_tokens"] for batch in self.held_out)
        answered = max(sum(int((batch["labels"][:, 1:] != IGNORED).sum()) for batch in self.held_out), 1)
        with undisturbed(self.model):
            shares = [
                float(self.share(self.model, self._prepare_inputs(dict(batch)), positions, answered))
                for batch in self.held_out
            ]
        check_not_repacked(self.model)
        return sum(shares)


def _joined(pieces: tuple[Any, ...]) -> torch.Tensor:
    """Arrays one below the other; of a single one a view, so that a watched row's answers stay on the disk
    until they are needed.
    """
    tensors = [torch.from_numpy(piece) for piece in pieces]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
