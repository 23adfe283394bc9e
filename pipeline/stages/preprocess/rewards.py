"""Weights of chats by their rewards (`train.reward`), and their distribution.

A weight multiplies the loss of a chat's tokens. Raw weights of a reward r, over the training rows that have
one:

- min_max: (r − min) ÷ (max − min), so the worst counts nothing;
- z_score: 1 + (r − mean) ÷ standard deviation, but not below 0;
- softmax: exp((r − max) ÷ temperature), as in reward-weighted regression (Peters and Schaal, 2007).

They are divided by their mean over the trained tokens, so that the learning rate means the same as without
rewards. Only differences of rewards count, so a negative reward is treated like any other. The weight is
exactly 1 if all rewards are equal, and in a row without a reward. Rows kept for monitoring get weights by
the same numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]
BINS = 20  # bins of the histograms
STEEP = 20.0  # times the mean weight; above this a few rows dominate all others


@dataclass(frozen=True)
class Weighting:
    """Conversion from rewards to weights: the numbers of the training rows that the rule above needs."""

    rule: str
    low: float = 0.0
    high: float = 0.0
    mean: float = 0.0
    deviation: float = 1.0
    temperature: float = 1.0
    divisor: float = 1.0

    def weights(self, rewards: Numbers) -> Numbers:
        """Return the weights (N,), float32, of rewards (N,). NaN marks a row without a reward."""
        if self.rule == "none" or self.low == self.high:
            return np.ones(len(rewards), np.float32)
        return np.where(np.isnan(rewards), 1.0, self._raw(rewards) / self.divisor).astype(np.float32)

    def _raw(self, rewards: Numbers) -> Numbers:
        if self.rule == "min_max":
            return np.clip((rewards - self.low) / (self.high - self.low), 0.0, 1.0)
        if self.rule == "softmax":
            return np.exp(np.minimum(rewards - self.high, 0.0) / self.temperature)
        return np.maximum(0.0, 1.0 + (rewards - self.mean) / self.deviation)


def weighting(rule: str, rewards: Numbers, tokens: Numbers, temperature: float = 1.0) -> Weighting:
    """Return the weighting of training rows with these rewards (N,), NaN if missing, and trained tokens
    (N,). Only softmax has a `temperature`.
    """
    is_rewarded = ~np.isnan(rewards)
    if not is_rewarded.any():
        return Weighting("none")
    values = rewards[is_rewarded].astype(np.float64)
    plain = Weighting(
        rule,
        low=float(values.min()),
        high=float(values.max()),
        mean=float(values.mean()),
        deviation=float(values.std()) or 1.0,
        temperature=temperature,
    )
    if rule == "none" or plain.low == plain.high:
        return plain
    return replace(plain, divisor=float(np.average(plain._raw(values), weights=tokens[is_rewarded])))


def account(weighting: Weighting, rewards: Numbers, weights: Numbers) -> dict[str, Any]:
    """Return the rewards' part of reports/labels.json: the rule, counts and both distributions."""
    known_rewards = rewards[~np.isnan(rewards)]
    known_weights = weights[~np.isnan(rewards)]
    return {
        "rule": weighting.rule,
        "sequences": len(known_rewards),
        "without": len(rewards) - len(known_rewards),
        "equal": len(known_rewards) > 0 and weighting.low == weighting.high,
        "lowest": weighting.low,
        "highest": weighting.high,
        "mean": round(weighting.mean, 6),
        "weightless": int((known_weights == 0).sum()),
        "largest_weight": round(float(known_weights.max()), 4) if len(known_rewards) else None,
        "rewards": histogram(known_rewards),
        "weights": histogram(known_weights),
    }


def histogram(values: Numbers) -> list[dict[str, float]]:
    """Return {"from", "to", "rows"} of `BINS` equal bins, or of one, from the lowest to the highest value."""
    if not len(values):
        return []
    counts, edges = np.histogram(values, bins=BINS if values.min() < values.max() else 1)
    return [
        {"from": round(float(start), 4), "to": round(float(end), 4), "rows": int(rows)}
        for rows, start, end in zip(counts, edges, edges[1:], strict=False)
    ]


def sentences(figures: Mapping[str, Any]) -> list[str]:
    """Return the sentences about rewards for the terminal and the page."""
    if not figures["sequences"]:
        return []
    rows = f"{figures['sequences']:,} rewarded rows"
    missing = f"; {figures['without']:,} without a reward weigh 1" if figures["without"] else ""
    if figures["rule"] == "none":
        return [f"{rows} weigh 1 each, for train.reward is none"]
    if figures["equal"]:
        return [f"all of the {rows} have reward {figures['lowest']:g}, so each weighs 1{missing}"]
    sentences = [
        f"{rows} ({figures['lowest']:g} to {figures['highest']:g}) are weighted by train.reward "
        f"{figures['rule']}: "
        f"{figures['weightless']:,} weigh 0, the best {figures['largest_weight']:.3g}{missing}"
    ]
    if figures["largest_weight"] > STEEP:
        sentences.append(
            f"a few rows weigh up to {figures['largest_weight']:.3g} times the mean, and the others hardly "
            "count: look at the rewards in reports/labels.html"
        )
    return sentences
