"""GRPO's loss from log-probabilities, per token.

With the ratio r = π ÷ π_old of training's own probabilities now and at the beginning of the round, an
advantage A, and the correction w for rollouts that another program drew (μ):

    loss = −w · min(r · A, clip(r, 1 − 0.2, 1 + 0.28) · A) + β · k3,
    w = min(π_old ÷ μ, 2),  k3 = exp(ref − π) − (ref − π) − 1.

The clipping is PPO's, its upper border apart from the lower one, both as in DAPO (arXiv:2503.14476, sections
3.1 and 4.1); w is truncated importance sampling (https://fengyao.notion.site/off-policy-rl; TRL's
`token_truncate`), with the cap that is used there; k3 is Schulman's estimate of the KL divergence to the
reference (http://joschu.net/blog/kl-approx.html).
"""

from typing import Any, NamedTuple

import torch

CLIP_LOW, CLIP_HIGH = 0.2, 0.28  # how far below and above 1 the ratio may move an update
CAP = 2.0  # of the correction's weight


class Terms(NamedTuple):
    """Per labelled token, (N,): the loss, which has a gradient, and what it is made of, which has none."""

    loss: Any
    low_clipped: Any  # bool: the ratio is below its lower border, and the border is what counts
    high_clipped: Any
    divergence: Any  # k3, 0 without a reference


def policy_terms(
    logps: Any, old: Any, advantages: Any, weights: Any, *, reference: Any = None, kl_beta: float = 0.0
) -> Terms:
    """The loss of each token; all float32 (N,), `logps` with a gradient. `weights`: see `correction`."""
    ratio = torch.exp(logps - old)
    clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    loss = -weights * torch.minimum(ratio * advantages, clipped * advantages)
    divergence = torch.zeros_like(logps)
    if reference is not None:
        behind = reference - logps
        divergence = torch.exp(behind) - behind - 1
        loss = loss + kl_beta * divergence
    low = (ratio < 1 - CLIP_LOW) & (advantages < 0)
    high = (ratio > 1 + CLIP_HIGH) & (advantages > 0)
    return Terms(loss, low, high, divergence.detach())


def correction(old: Any, rollout: Any) -> Any:
    """The weights w (N,) by both log-probabilities of the same tokens; 1 where the rollout's is NaN."""
    return torch.exp(old - rollout).clamp(max=CAP).nan_to_num(nan=1.0)
