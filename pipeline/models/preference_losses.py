"""The losses of preferences, from log-probabilities of answers; one value for each pair or answer.

πc and πr are log-probabilities of the chosen and the rejected answer, rc and rr the reference's, nc and nr
their tokens; σ is the logistic function.

- DPO (arXiv:2305.18290): −log σ(β · ((πc − rc) − (πr − rr)))
- IPO (arXiv:2310.12036): ((πc − rc) ÷ nc − (πr − rr) ÷ nr − 1 ÷ 2β)², by token, as its authors advise
- ORPO (arXiv:2403.07691): −πc ÷ nc − β · log σ(log-odds of πc ÷ nc − log-odds of πr ÷ nr)
- SimPO (arXiv:2405.14734): −log σ(β · (πc ÷ nc − πr ÷ nr) − γ)
- KTO (arXiv:2402.01306): w⁺ · (1 − σ(β · (π − r − z))) of a good answer, w⁻ · (1 − σ(β · (z − π + r))) of a
  bad one; z is the mean of log-probability ratios of answers to other prompts, at least 0, without gradient
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import logsigmoid

from pipeline.config.methods import Method


@dataclass(frozen=True)
class Likelihoods:
    """Answers' values: log-probabilities, the reference's (zeros without one) and token counts, each (n,)."""

    logps: Any
    reference: Any
    tokens: Any

    @property
    def ratio(self) -> Any:
        """Log-ratio of policy to reference (n,)."""
        return self.logps - self.reference

    @property
    def mean(self) -> Any:
        """Log-probability per token (n,)."""
        return self.logps / self.tokens

    def of(self, which: Any) -> "Likelihoods":
        """Return the values of some answers, by a mask (n,)."""
        return Likelihoods(self.logps[which], self.reference[which], self.tokens[which])


def pair_losses(
    method: Method,
    chosen: Likelihoods,
    rejected: Likelihoods,
    *,
    beta: float,
    gamma: float,
    sft_weight: float,
) -> tuple[Any, Any]:
    """Return (losses, margins), each (pairs,). A margin measures how much the chosen answer is preferred, in
    the method's own unit: above 0, the pair is ranked correctly. Raises `ValueError` for a method without a
    loss of pairs.
    """
    if method == "dpo":
        margins = beta * (chosen.ratio - rejected.ratio)
        losses = -logsigmoid(margins)
    elif method == "ipo":
        margins = chosen.ratio / chosen.tokens - rejected.ratio / rejected.tokens
        losses = (margins - 1 / (2 * beta)).square()
    elif method == "orpo":
        margins = log_odds(chosen.mean) - log_odds(rejected.mean)
        losses = -chosen.mean - beta * logsigmoid(margins)
    elif method == "simpo":
        margins = beta * (chosen.mean - rejected.mean)
        losses = -logsigmoid(margins - gamma)
    else:
        raise ValueError(f"train.method {method} has no loss of pairs")
    if sft_weight and method != "orpo":
        losses = losses - sft_weight * chosen.mean
    return losses, margins.detach()


def log_odds(logps: Any) -> Any:
    """Return log p ÷ (1 − p) of log-probabilities below 0; it stays finite for a certain answer."""
    return logps - torch.log1p(-logps.exp().clamp(max=1 - 1e-6))


def kto_weights(desirable: int, undesirable: int) -> tuple[float, float]:
    """Return w⁺ and w⁻ with which these numbers of good and bad answers have the same total weight. The more
    frequent kind has 1 (KTO, arXiv:2402.01306, advises w⁺·n⁺ ÷ (w⁻·n⁻) from 1 to 4/3). Both are 1 if there is
    only one kind.
    """
    if not desirable or not undesirable:
        return 1.0, 1.0
    most = max(desirable, undesirable)
    return most / desirable, most / undesirable


def kto_losses(
    answers: Likelihoods, desirable: Any, divergence: Any, beta: float, weights: tuple[float, float]
) -> tuple[Any, Any]:
    """Return (losses, margins), each (n,), of answers. Those in the mask `desirable` (n,) are good;
    `divergence` is z, `weights` are w⁺ and w⁻. A margin above 0 means that an answer is judged correctly.
    """
    direction = torch.where(desirable, 1.0, -1.0)
    margins = beta * direction * (answers.ratio - divergence)
    return torch.where(desirable, *weights) * (1 - margins.sigmoid()), margins.detach()
