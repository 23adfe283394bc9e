"""The trainer of GRPO: each optimizer step is made of rollouts, of which a round is drawn every few steps."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import torch

from pipeline.models.token_logps import token_logps
from pipeline.models.tuners import causal_model
from pipeline.planning.steps import steps_per_epoch
from pipeline.stages.train.grpo.batches import Group, for_the_model, trained, training_batch
from pipeline.stages.train.grpo.drawing import Rounds
from pipeline.stages.train.grpo.figures import Sums, figures, of_groups, of_tokens
from pipeline.stages.train.grpo.losses import correction, divisor, policy_terms
from pipeline.stages.train.grpo.rounds import Round
from pipeline.stages.train.monitoring.samples import undisturbed
from pipeline.stages.train.step_stats import Batch
from pipeline.stages.train.trainer import QuenchTrainer


class GrpoTrainer(QuenchTrainer):
    """Trains on the completions that `rounds` gives for batches of prompts."""

    def __init__(self, *, rounds: Rounds, **rest: Any) -> None:
        super().__init__(**rest)
        self.rounds, self.grpo = rounds, rounds.grpo
        self.waiting: list[Batch] = []  # of the round, in order; not yet trained
        self.resumed = rest["start"] is not None
        self.sums, self.tokens = Sums(), 1  # of the optimizer step

    # --- rounds -----------------------------------------------------------------------------------------

    def get_batch_samples(self, epoch_iterator: Iterator[Batch], num_batches: int, device: Any) -> Any:
        """The optimizer step's batches with their completions, and what its loss is divided by."""
        if not self.waiting:
            self.waiting = self.next_round(epoch_iterator)
        batches, self.waiting = self.waiting[:num_batches], self.waiting[num_batches:]
        self.sums = of_groups(group for batch in batches for group in batch.pop("groups"))
        self.tokens = max(sum(batch["trained_tokens"] for batch in batches), 1)
        whole = divisor(self.grpo.loss, self.tokens, self.sums["completions"], self.grpo.max_new_tokens)
        return batches, torch.tensor(whole, device=device)

    def next_round(self, prompts: Iterator[Batch]) -> list[Batch]:
        """The batches of the round that the next step is in; those of them that are left, where a run goes on
        inside a round. A round ends with its epoch.
        """
        step = self.state.global_step
        done = step % steps_per_epoch(self.rounds.settings, len(self.train_dataset)) % self.grpo.steps_per_round
        left = (self.grpo.steps_per_round - done) * self.args.gradient_accumulation_steps
        asked = list(islice(prompts, left))
        if done:
            made = self.rounds.begun(step - done, list(chain(*(batch["rows"] for batch in asked))))
        else:
            made = self.rounds.at(self.model, step, asked, self.measure, self.heed_signal, self.resumed)
        self.resumed = False
        return [training_batch(batch, groups, self.grpo) for batch, groups in self.shared(asked, made)]

    def shared(self, asked: Sequence[Batch], made: Round) -> Iterator[tuple[Batch, list[Group]]]:
        """Each batch of prompts with its groups, which are the round's last ones."""
        count = sum(len(batch["rows"]) for batch in asked)
        groups = iter(made.groups()[-count:])
        return ((batch, list(islice(groups, len(batch["rows"])))) for batch in asked)

    def measure(self, prompts: Batch, groups: Sequence[Group], reference: bool) -> list[list[float]]:
        """The log-probabilities of each completion that is trained, by the model as it is or (`reference`)
        without what it has learned.
        """
        batch = training_batch(prompts, groups, self.grpo)
        lengths = [len(one.ids) for group in groups for one in trained(group, self.grpo)]
        if not lengths:
            return []
        with undisturbed(self.model), without_tuner(self.model, reference):
            logps = self.logps(self.model, self._prepare_inputs(for_the_model(batch)))
        return [piece.tolist() for piece in logps.cpu().split(lengths)]

    def logps(self, model: Any, inputs: Batch) -> torch.Tensor:
        """Log-probabilities (N,) of a batch's labelled tokens, float32."""
        with self.accelerator.autocast():
            found: torch.Tensor = token_logps(
                causal_model(self.accelerator.unwrap_model(model)), for_the_model(inputs)
            )
        return found

    # --- the loss ---------------------------------------------------------------------------------------

    def compute_loss(
        self, model: Any, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """A batch's share of the step's loss: a scalar."""
        loss = self.loss_over(model, inputs, num_items_in_batch)
        self.stats.add(inputs, loss * self.tokens)
        return loss

    def loss_over(self, model: Any, inputs: Batch, tokens: Any) -> torch.Tensor:
        """The sum of GRPO's loss over a batch's tokens ÷ `tokens`."""
        if not inputs["input_ids"].numel():
            return sum(weight.sum() * 0 for weight in model.parameters() if weight.requires_grad)
        weights = correction(inputs["old"], inputs["rollout"], self.grpo.correction_cap)
        terms = policy_terms(
            self.logps(model, inputs),
            inputs["old"],
            inputs["advantages"],
            weights,
            clip_low=self.grpo.clip_low,
            clip_high=self.grpo.clip_high,
            reference=inputs["reference"] if self.grpo.kl_beta else None,
            kl_beta=self.grpo.kl_beta,
        )
        self.sums.update(of_tokens(terms, inputs, weights, self.grpo))
        return terms.loss.sum() / tokens

    def held_out_loss(self) -> float:
        """Minus the mean reward of one completion for each held-out prompt, always with the same seeds."""
        return -self.rounds.watched(self.model, self.held_out)

    def step_figures(self) -> dict[str, float | None]:
        """The optimizer step in figures, for the metrics log."""
        return figures(self.sums, self.grpo)
