"""What is measured of a batch of GRPO, as sums and of how many values each is."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from pipeline.config.sections.grpo import Grpo
from pipeline.stages.train.grpo.advantages import teaches
from pipeline.stages.train.grpo.batches import Group
from pipeline.stages.train.grpo.losses import Terms
from pipeline.stages.train.step_stats import Batch, Sums


def of_groups(groups: Sequence[Group]) -> Sums:
    """Of all that was drawn: `reward`, `zero_variance` (groups of equal rewards, of which nothing is
    learned), `truncated` (completions that hit the limit), `completion_tokens`, `entropy` (−log-probability
    of a drawn token, in nats), `unknown` (tokens without a log-probability of the rollout).
    """
    drawn = [one for group in groups for one in group]
    tokens = [log for one in drawn for log in one.logps]
    known = [-log for log in tokens if log is not None]
    sums = {
        "reward": (math.fsum(one.reward for one in drawn), len(drawn)),
        "zero_variance": (sum(not teaches([one.reward for one in group]) for group in groups), len(groups)),
        "truncated": (sum(not one.stopped for one in drawn), len(drawn)),
        "completion_tokens": (len(tokens), len(drawn)),
        "entropy": (math.fsum(known), len(known)),
        "unknown": (len(tokens) - len(known), len(tokens)),
    }
    return {name: (torch.tensor(float(total)), count) for name, (total, count) in sums.items()}


def of_tokens(terms: Terms, batch: Batch, weights: Any, settings: Grpo) -> Sums:
    """Of the tokens that are trained: `clipped` (the ratio is beyond its border), `gap` (|log-probability in
    training − in the rollout|), `capped` (the correction is at its cap), and, with a reference, `kl` (k3).
    """
    count = terms.loss.numel()
    gaps = (batch["old"] - batch["rollout"]).abs()
    known = gaps.isfinite()
    sums: Sums = {
        "clipped": ((terms.low_clipped | terms.high_clipped).sum().float(), count),
        "gap": (gaps[known].sum(), int(known.sum())),
    }
    if settings.correction_cap is not None:
        sums["capped"] = ((weights >= settings.correction_cap).sum().float(), count)
    if settings.kl_beta:
        sums["kl"] = (terms.divergence.sum(), count)
    return sums
