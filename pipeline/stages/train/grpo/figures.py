"""What is measured of a batch of GRPO, as sums and of how many values each is."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from pipeline.config.sections.grpo import Grpo
from pipeline.stages.train.grpo.advantages import teaches
from pipeline.stages.train.grpo.batches import Group
from pipeline.stages.train.grpo.losses import CAP, Terms
from pipeline.stages.train.step_stats import Batch, Sums

ENDS = 10  # steps at the beginning and at the end whose mean reward is told


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


def rewards_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`rewards` of reports/train.json, from the metrics log: means of the first and of the last steps, and
    over all steps what says how far they can be trusted.
    """
    steps = [row["measures"] for row in rows if row["kind"] == "step"]
    means = {
        name: round(statistics.fmean(found), 6)
        for name in ("zero_variance", "truncated", "entropy", "kl", "clipped", "gap", "capped", "unknown")
        if (found := [one[name] for one in steps if name in one])
    }
    first, last = (
        round(statistics.fmean(one["reward"] for one in some), 4) for some in (steps[:ENDS], steps[-ENDS:])
    )
    return {"rewards": {"first": first, "last": last, **means}}


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
        "capped": ((weights >= CAP).sum().float(), count),
    }
    if settings.kl_beta:
        sums["kl"] = (terms.divergence.sum(), count)
    return sums
