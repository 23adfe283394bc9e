"""Log-probabilities of tokens from logits, and the divergence of one model's logits from another's."""

from dataclasses import dataclass

import numpy as np

from pipeline.llamacpp.logits import Floats, Ids


@dataclass(frozen=True)
class Shifted:
    """Logits minus their largest and exp of them (T, V), the largest's index and log Σ exp (T,)."""

    logits: Floats
    weights: Floats
    top: Ids
    log_sum: Floats


def shifted(logits: Floats) -> Shifted:
    """Return a copy of logits (T, V), shifted so that exp can't overflow."""
    top = logits.argmax(axis=-1)
    moved = logits - np.take_along_axis(logits, top[:, None], axis=-1)
    weights = np.exp(moved)
    return Shifted(moved, weights, top, np.log(weights.sum(axis=-1, dtype=np.float64)))


def negative_log(logits: Shifted, following: Ids) -> Floats:
    """Return −log p of the tokens `following` (T,)."""
    loss: Floats = logits.log_sum - np.take_along_axis(logits.logits, following[:, None], axis=-1)[:, 0]
    return loss


def kl_divergence(reference: Shifted, candidate: Shifted) -> Floats:
    """Return KL(reference ‖ candidate) per position, in nats (T,); the candidate's logits are overwritten.

    KL(P ‖ Q) = Σ P·(logit_P − logit_Q) − log Σ exp logit_P + log Σ exp logit_Q. The terms are float32 and
    their sums float64: correct to 1e-7 nats (tests/stages/evaluate/test_divergence.py) in a twentieth of the
    time that float64 terms take, and exactly 0 for equal logits.
    """
    difference = np.subtract(reference.logits, candidate.logits, out=candidate.logits)
    kld: Floats = (
        np.multiply(reference.weights, difference, out=difference).sum(axis=-1, dtype=np.float64)
        / np.exp(reference.log_sum)
        - reference.log_sum
        + candidate.log_sum
    )
    return np.maximum(kld, 0.0)  # Rounding can leave −1e-8.


def perplexity(losses: Floats) -> tuple[float, float]:
    """Return exp(mean loss) and its standard error (delta method, as in llama-perplexity).

    `losses` (T,) are in nats.
    """
    value = float(np.exp(losses.mean()))
    if len(losses) < 2:
        return value, 0.0
    return value, value * float(losses.std(ddof=1)) / float(np.sqrt(len(losses)))
