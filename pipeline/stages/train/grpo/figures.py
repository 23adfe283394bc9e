"""An optimizer step of GRPO in figures, as the metrics log, TensorBoard and the report have them."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.config.sections.grpo import Grpo
from pipeline.stages.train.grpo.advantages import teaches
from pipeline.stages.train.grpo.rounds import Completion

# the name in the metrics log: what it is
FIGURES = {
    "reward": "mean reward of the step's completions",
    "zero_variance": "share of groups whose completions all have the same reward, so nothing is learned of them",
    "truncated": "share of completions that hit train.grpo.max_new_tokens",
    "completion_tokens": "mean length of a completion",
    "entropy": "mean −log-probability of a drawn token, in nats",
    "kl": "divergence from the base (k3), in nats a token; null without train.grpo.kl_beta",
    "clipped": "share of trained tokens whose ratio is beyond its border",
    "gap": "mean |log-probability in training − in the rollout| of a trained token",
    "capped": "share of trained tokens whose correction is at train.grpo.correction_cap",
    "unknown": "share of tokens without a log-probability of the rollout",
}
Sums = Counter[str]


def of_groups(groups: Iterable[Sequence[Completion]]) -> Sums:
    """Sums over drawn groups."""
    sums: Sums = Counter()
    for group in groups:
        sums["groups"] += 1
        sums["same"] += not teaches([one.reward for one in group])
        for one in group:
            known = [log for log in one.logps if log is not None]
            sums.update(
                completions=1,
                reward=one.reward,
                truncated=not one.stopped,
                tokens=len(one.ids),
                known=len(known),
                surprise=-math.fsum(known),
            )
    return sums


def of_tokens(terms: Any, batch: dict[str, Any], weights: Any, settings: Grpo) -> Sums:
    """Sums over a batch's trained tokens; `terms` are `policy_terms`'."""
    gaps = (batch["old"] - batch["rollout"]).abs()
    sums = {
        "trained": terms.loss.numel(),
        "clipped": int((terms.low_clipped | terms.high_clipped).sum()),
        "divergence": float(terms.divergence.sum()),
        "compared": int(gaps.isfinite().sum()),
        "gap": float(gaps.nan_to_num(nan=0.0).sum()),
        "capped": int((weights >= settings.correction_cap).sum()) if settings.correction_cap else 0,
    }
    return Counter(sums)


def figures(sums: Sums, settings: Grpo) -> dict[str, float | None]:
    """`FIGURES` from the sums of a step; None where nothing was counted."""

    def mean(of: str, by: str) -> float | None:
        return sums[of] / sums[by] if sums[by] else None

    unknown = sums["tokens"] - sums["known"]
    return {
        "reward": mean("reward", "completions"),
        "zero_variance": mean("same", "groups"),
        "truncated": mean("truncated", "completions"),
        "completion_tokens": mean("tokens", "completions"),
        "entropy": mean("surprise", "known"),
        "kl": mean("divergence", "trained") if settings.kl_beta else None,
        "clipped": mean("clipped", "trained"),
        "gap": mean("gap", "compared"),
        "capped": mean("capped", "trained"),
        "unknown": unknown / sums["tokens"] if sums["tokens"] else None,
    }
