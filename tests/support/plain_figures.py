"""Figures of logits by their definitions, in float64, that faster ways are compared with."""

import numpy as np

from pipeline.llamacpp.logits import Floats


def log_softmax(logits: Floats) -> Floats:
    """log p over the last axis."""
    shifted: Floats = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def divergence(reference: Floats, candidate: Floats) -> Floats:
    """KL(reference ‖ candidate) per position, in nats; both are log probabilities (T, V)."""
    kld: Floats = (np.exp(reference) * (reference - candidate)).sum(axis=-1)
    return np.maximum(kld, 0.0)  # rounding can leave −1e-17


def nmse(reference: Floats, candidate: Floats) -> float:
    """Normalized mean squared error Σ(c − r)² ÷ Σr² of logits, as in llama.cpp's test-backend-ops."""
    difference = candidate.astype(np.float64) - reference
    return float((difference**2).sum() / (reference.astype(np.float64) ** 2).sum())
