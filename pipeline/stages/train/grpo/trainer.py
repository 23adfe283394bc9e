"""Trainer of GRPO: each optimizer step is made of rollouts. A round of them is drawn every few steps."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, islice
from typing import Any

import torch

from pipeline.models.chunked_loss import token_logps
from pipeline.models.tuners import as_at_start, causal_model
from pipeline.stages.train.dataset import forward_parts
from pipeline.stages.train.grpo.drawing import Rounds
from pipeline.stages.train.grpo.losses import (
    Group,
    correction,
    of_groups,
    of_tokens,
    policy_terms,
    trained,
    training_batch,
)
from pipeline.stages.train.grpo.rounds import Round
from pipeline.stages.train.loop import Trainer
from pipeline.stages.train.monitoring.samples import undisturbed
from pipeline.stages.train.step_stats import Batch, Sums


class GrpoTrainer(Trainer):
    """Trainer on the completions that `rounds` gives for batches of prompts."""

    def __init__(self, *, rounds: Rounds, **rest: Any) -> None:
        super().__init__(**rest)
        self.rounds = rounds
        self.grpo = self.settings.grpo
        self.waiting: list[Batch] = []  # batches of the round, in order, that are not yet trained
        self.resumed = self.run.start is not None

    # --- rounds -----------------------------------------------------------------------------------------

    def next_batches(self, batches: Iterator[Batch]) -> list[Batch]:
        """Return the optimizer step's batches with their completions, from `batches` of prompts."""
        if not self.waiting:
            self.waiting = self.next_round(batches)
        count = self.settings.gradient_accumulation_steps
        now = self.waiting[:count]
        self.waiting = self.waiting[count:]
        return now

    def items_of(self, batches: list[Batch]) -> int:
        """Return the divisor of an optimizer step's loss, at least 1."""
        return max(super().items_of(batches), 1)

    def next_round(self, prompts: Iterator[Batch]) -> list[Batch]:
        """Return the batches of the round that the next step is in. If a run resumes inside a round, return
        those that are left of it. A round ends with its epoch.
        """
        step = self.step
        done = step % self.epoch_steps % self.grpo.steps_per_round
        left = (self.grpo.steps_per_round - done) * self.settings.gradient_accumulation_steps
        batches = list(islice(prompts, left))
        if done:
            rollouts = self.rounds.begun(step - done, list(chain(*(batch["rows"] for batch in batches))))
        else:
            with self.autocast():
                rollouts = self.rounds.at(
                    self.model, step, batches, self.measure, self.heed_signal, self.resumed
                )
        self.resumed = False
        return [training_batch(batch, groups, self.grpo) for batch, groups in shared(batches, rollouts)]

    def measure(self, prompts: Batch, groups: Sequence[Group], reference: bool) -> list[list[float]]:
        """Return log-probabilities of trained completions by the model or its initial state (`reference`)."""
        lengths = [len(completion.ids) for group in groups for completion in trained(group, self.grpo)]
        if not lengths:
            return []
        inputs = self.on_device(forward_parts(training_batch(prompts, groups, self.grpo)))
        with (
            undisturbed(self.model),
            as_at_start(self.model, self.run.previous) if reference else nullcontext(),
            self.autocast(),
        ):
            logps = token_logps(causal_model(self.model), inputs)
        return [piece.tolist() for piece in logps.cpu().split(lengths)]

    # --- the loss ---------------------------------------------------------------------------------------

    def losses(self, model: Any, inputs: Batch, items: Any) -> tuple[torch.Tensor, Sums]:
        """Return the sum of GRPO's loss over a batch's tokens ÷ `items`, and the measures of the batch."""
        measured = of_groups(inputs["groups"])
        if not inputs["input_ids"].numel():
            return sum(weight.sum() * 0 for weight in model.parameters() if weight.requires_grad), measured
        weights = correction(inputs["old"], inputs["rollout"])
        terms = policy_terms(
            token_logps(model, forward_parts(inputs)),
            inputs["old"],
            inputs["advantages"],
            weights,
            self.grpo,
            reference=inputs["reference"] if self.grpo.kl_beta else None,
        )
        return terms.loss.sum() / items, measured | of_tokens(terms, inputs, weights, self.grpo)

    def held_out_metrics(self) -> dict[str, Any]:
        """Return the mean reward of one completion for each held-out prompt, always with the same seeds. Its
        negative is the loss that early stopping uses.
        """
        with self.autocast():
            reward = self.rounds.watched(self.model, self.held_out)
        items = sum(len(batch["rows"]) for batch in self.held_out)
        return {"eval_loss": -reward, "items": items, "measures": {"reward": reward}}


def shared(batches: Sequence[Batch], rollouts: Round) -> Iterator[tuple[Batch, list[Group]]]:
    """Yield each batch of prompts with its groups, which are the last ones of the round."""
    groups = iter(rollouts.groups()[-sum(len(batch["rows"]) for batch in batches) :])
    return ((batch, list(islice(groups, len(batch["rows"])))) for batch in batches)
