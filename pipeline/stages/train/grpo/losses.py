"""Loss of GRPO: batches of completions, their loss per token from log-probabilities, and measures of both.

With the ratio r = π ÷ π_old of training's own probabilities now and at the beginning of the round, an
advantage A, and the correction w for rollouts that another program drew (μ):

    loss = −w · min(r · A, clip(r, 1 − low, 1 + high) · A) + β · k3,
    w = min(π_old ÷ μ, 2),  k3 = exp(ref − π) − (ref − π) − 1.

The clipping is PPO's. Its upper border (`train.grpo.clip_high`) is separate from the lower one (`clip_low`),
by default both as in DAPO (arXiv:2503.14476, sections 3.1 and 4.1). w is truncated importance sampling
(https://fengyao.notion.site/off-policy-rl; TRL's `token_truncate`), with the cap that is used there. k3 is
Schulman's estimate of the KL divergence to the reference (http://joschu.net/blog/kl-approx.html).
"""

import math
import statistics
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from pipeline.chat.prompts import prompt_ids
from pipeline.chat.tokens import IGNORED
from pipeline.config.sections.training import Grpo
from pipeline.stages.train.dataset import Collator
from pipeline.stages.train.grpo.rewards import teaches
from pipeline.stages.train.grpo.rounds import Completion
from pipeline.stages.train.step_stats import Batch, Sums

CAP = 2.0  # maximum weight of the correction
ENDS = 10  # steps at the beginning and at the end whose mean reward is reported
Group = Sequence[Completion]


class Terms(NamedTuple):
    """Terms per labelled token, (N,): the loss, which has a gradient, and its parts, which have none."""

    loss: Any
    # bool: the ratio is below its lower border, and the border is what counts
    low_clipped: Any
    high_clipped: Any
    divergence: Any  # k3, 0 without a reference


def policy_terms(
    logps: Any, old: Any, advantages: Any, weights: Any, settings: Grpo, reference: Any = None
) -> Terms:
    """Return the loss of each token.

    All are float32 (N,), `logps` with a gradient. For `weights` see `correction`.
    """
    lowest, highest = 1 - settings.clip_low, 1 + settings.clip_high
    ratio = torch.exp(logps - old)
    clipped = ratio.clamp(lowest, highest)
    loss = -weights * torch.minimum(ratio * advantages, clipped * advantages)
    divergence = torch.zeros_like(logps)
    if reference is not None:
        behind = reference - logps
        divergence = torch.exp(behind) - behind - 1
        loss = loss + settings.kl_beta * divergence
    low = (ratio < lowest) & (advantages < 0)
    high = (ratio > highest) & (advantages > 0)
    return Terms(loss, low, high, divergence.detach())


def correction(old: Any, rollout: Any) -> Any:
    """Return the weights w (N,) from both log-probabilities of the same tokens, 1 if the rollout's is NaN."""
    return torch.exp(old - rollout).clamp(max=CAP).nan_to_num(nan=1.0)


class PromptCollator:
    """Collator of prompts, which are not trained themselves. `plain` collates sequences."""

    def __init__(self, plain: Collator) -> None:
        self.plain = plain

    def __call__(self, examples: list[dict[str, Any]]) -> Batch:
        """Return the rows' numbers and ids, and each one's prompt."""
        return {
            "rows": [example["row"] for example in examples],
            "row_ids": [name for example in examples for name in example["row_ids"]],
            "prompts": [prompt_ids(example["input_ids"], example["labels"]) for example in examples],
        }


def trained(group: Group, settings: Grpo) -> list[Completion]:
    """Return the completions of a group that are in the loss: none of a group of equal rewards, unless the
    divergence is in the loss too. One that was cut off counts like the others.
    """
    if not settings.kl_beta and not teaches([completion.reward for completion in group]):
        return []
    return list(group)


def training_batch(prompts: Batch, groups: Sequence[Group], settings: Grpo) -> Batch:
    """Return the trained completions of the groups to a batch's prompts, as one sequence (1, T) with
    positions that restart with each, and the values of its labelled tokens (N,): `advantages`, `old`,
    `rollout` and `reference`.
    """
    pairs = [
        (prompt, completion)
        for prompt, group in zip(prompts["prompts"], groups, strict=True)
        for completion in trained(group, settings)
    ]
    flat = {
        "input_ids": [prompt + completion.ids for prompt, completion in pairs],
        "labels": [[IGNORED] * len(prompt) + completion.ids for prompt, completion in pairs],
        "position_ids": [list(range(len(prompt) + len(completion.ids))) for prompt, completion in pairs],
    }
    tokens = {
        "advantages": [[completion.advantage] * len(completion.ids) for _, completion in pairs],
        "old": [completion.old or [] for _, completion in pairs],
        "rollout": [
            [float("nan") if log is None else log for log in completion.logps] for _, completion in pairs
        ],
        "reference": [completion.reference or [] for _, completion in pairs],
    }
    # A group of equal rewards counts although it is skipped, so the update is the same as with it.
    tokens_counted = sum(len(completion.ids) for group in groups for completion in group)
    most_tokens = sum(map(len, groups)) * settings.max_new_tokens
    return {
        **{name: torch.tensor([list(chain(*rows))], dtype=torch.long) for name, rows in flat.items()},
        **{name: torch.tensor(list(chain(*rows)), dtype=torch.float32) for name, rows in tokens.items()},
        "rows": prompts["rows"],
        "row_ids": prompts["row_ids"],
        "trained_tokens": tokens_counted,
        # Share of the divisor of the sum over an optimizer step's tokens. `dapo`: the tokens, so each counts
        # alike. `dr_grpo`: the most that there could have been, so a step of short completions is not larger
        # than one of long ones.
        "items": tokens_counted if settings.loss == "dapo" else most_tokens,
        "groups": groups,
    }


def of_groups(groups: Sequence[Group]) -> Sums:
    """Return the sums over all that was drawn: `reward`, `zero_variance` (groups of equal rewards, which
    teach nothing), `truncated` (completions that hit the limit), `completion_tokens`, `entropy`
    (−log-probability of a drawn token, in nats), `unknown` (tokens without a log-probability of the
    rollout).
    """
    drawn = [completion for group in groups for completion in group]
    tokens = [log for completion in drawn for log in completion.logps]
    surprisals = [-log for log in tokens if log is not None]
    sums = {
        "reward": (math.fsum(completion.reward for completion in drawn), len(drawn)),
        "zero_variance": (
            sum(not teaches([completion.reward for completion in group]) for group in groups),
            len(groups),
        ),
        "truncated": (sum(not completion.stopped for completion in drawn), len(drawn)),
        "completion_tokens": (len(tokens), len(drawn)),
        "entropy": (math.fsum(surprisals), len(surprisals)),
        "unknown": (len(tokens) - len(surprisals), len(tokens)),
    }
    return {name: (torch.tensor(float(total)), count) for name, (total, count) in sums.items()}


def rewards_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return `rewards` of reports/train.json from the metrics log: mean rewards of the first and of the last
    steps, and the means over all steps that show how far they can be trusted.
    """
    steps = [row["measures"] for row in rows if row["kind"] == "step"]
    means = {}
    for name in ("zero_variance", "truncated", "entropy", "kl", "clipped", "gap", "capped", "unknown"):
        values = [step[name] for step in steps if name in step]
        if values:
            means[name] = round(statistics.fmean(values), 6)
    first = round(statistics.fmean(step["reward"] for step in steps[:ENDS]), 4)
    last = round(statistics.fmean(step["reward"] for step in steps[-ENDS:]), 4)
    return {"rewards": {"first": first, "last": last, **means}}


def of_tokens(terms: Terms, batch: Batch, weights: Any, settings: Grpo) -> Sums:
    """Return the sums over the trained tokens: `clipped` (the ratio is beyond its border), `gap`
    (|log-probability in training − in the rollout|), `capped` (the correction is at its cap), and, with a
    reference, `kl` (k3).
    """
    count = terms.loss.numel()
    gaps = (batch["old"] - batch["rollout"]).abs()
    finite = gaps.isfinite()
    sums: Sums = {
        "clipped": ((terms.low_clipped | terms.high_clipped).sum().float(), count),
        "gap": (gaps[finite].sum(), int(finite.sum())),
        "capped": ((weights >= CAP).sum().float(), count),
    }
    if settings.kl_beta:
        sums["kl"] = (terms.divergence.sum(), count)
    return sums
