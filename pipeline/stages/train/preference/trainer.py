"""The trainer of preferences: a loss that is a mean over the step's pairs (KTO: answers), and figures."""

from typing import Any

import torch

from pipeline.chat.answers import CHOSEN, REJECTED
from pipeline.models.preference_losses import Likelihoods, kto_losses, pair_losses
from pipeline.stages.train.preference.collator import OTHERS
from pipeline.stages.train.preference.reference import Reference, likelihoods
from pipeline.stages.train.step_stats import Batch, Sums
from pipeline.stages.train.trainer import QuenchTrainer


class PreferenceTrainer(QuenchTrainer):
    """Trains with the loss of `settings.method`; `reference` is None where the method has none."""

    def __init__(self, *, reference: Reference | None, **rest: Any) -> None:
        super().__init__(**rest)
        self.reference = reference

    def losses(self, model: Any, inputs: Batch, items: Any) -> tuple[torch.Tensor, Sums]:
        """Sum of the losses of a batch's pairs or answers ÷ `items`, and the sums of what is measured."""
        roles = inputs["roles"]
        # the reference before the forward that keeps activations; KTO's other answers after it, for autocast
        # would keep copies of the adapter's weights that were made without a gradient
        reference = self.asked(model, inputs)
        logps, tokens = likelihoods(model, inputs, len(roles))
        answers = Likelihoods(logps, torch.zeros_like(logps) if reference is None else reference, tokens)
        chosen, rejected = answers.of(roles == CHOSEN), answers.of(roles == REJECTED)
        if self.settings.method == "kto":
            divergence = self.divergence(model, inputs)
            losses, margins = self.kto(answers, roles == CHOSEN, divergence)
            extra: Sums = {"kl": (divergence, 1)}
        else:
            losses, margins = self.paired(chosen, rejected)
            extra = {}
        return losses.sum() / items, extra | measured(chosen, rejected, margins, self.reference is not None)

    def asked(self, model: Any, batch: Batch) -> Any:
        """The reference's log-probabilities (n,) of the answers in a batch; None without a reference."""
        return self.reference and self.reference.logps(self.model, model, batch)

    def paired(self, chosen: Likelihoods, rejected: Likelihoods) -> tuple[Any, Any]:
        """Losses and margins (pairs,)."""
        settings = self.settings
        return pair_losses(settings.method, chosen, rejected, settings.beta, settings.sft_weight)

    def kto(self, answers: Likelihoods, desirable: Any, divergence: Any) -> tuple[Any, Any]:
        """Losses and margins (n,)."""
        settings = self.settings.preference
        weights = settings.desirable_weight, settings.undesirable_weight
        return kto_losses(answers, desirable, divergence, self.settings.beta, weights)

    def divergence(self, model: Any, inputs: Batch) -> Any:
        """KTO's z: the mean of log π ÷ reference over other answers to the batch's prompts, at least 0."""
        others = inputs[OTHERS]
        with torch.no_grad():
            logps, _ = likelihoods(model, others, len(inputs["roles"]))
            return (logps - self.asked(model, others)).mean().clamp(min=0)


def measured(chosen: Likelihoods, rejected: Likelihoods, margins: Any, has_reference: bool) -> Sums:
    """Sums of what is measured of pairs or answers: whether they are told right, and how likely they are."""
    found: Sums = {
        "accuracy": ((margins > 0).float().sum(), len(margins)),
        "margin": (margins.sum(), len(margins)),
        "chosen_logp": (chosen.logps.sum(), len(chosen.logps)),
        "rejected_logp": (rejected.logps.sum(), len(rejected.logps)),
    }
    if has_reference:  # by how much each has become likelier than it was
        found["chosen_gain"] = chosen.ratio.sum(), len(chosen.logps)
        found["rejected_gain"] = rejected.ratio.sum(), len(rejected.logps)
    return found
