"""Limits for the distance of a rounded model from its original if a limit is `auto`: the published figures of
its level, by the model's size.

A sound Q5_K_M differs from F16 by a third of what a sound Q4_K_M does, and a small model loses more than a
large one, so no single number suits all.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import exp, log

from pipeline.config.ggml_types import LEVELS
from pipeline.config.levels import ModelName

# Mean KL divergence from F16 in nats: Llama-3-8B on Wikitext-2, without an importance matrix (IQ levels: with
# one, others are not published). Source: llama.cpp, tools/perplexity/README.md, "LLaMA 3 8b Scoreboard"
# (revision f364eb6f). It is among the largest of the models of 7 to 9 billion parameters that figures were
# found for: at Q4_K_M Llama-2-7B has 0.0127 (the same page), Mistral-7B 0.01 (llama.cpp pull request 4739),
# files of Qwen3.5-9B 0.009 to 0.035 (r/LocalLLaMA 1rr72lr).
PUBLISHED_MODEL = "Llama-3-8B"
PUBLISHED_PARAMETERS = 8.03e9
PUBLISHED_KLD = dict.fromkeys(("F16", "BF16"), 0.00055)
PUBLISHED_KLD |= {name: level.kld for name, level in LEVELS.items() if level.kld is not None}
# NF4 by blocks of 64 is not in that table. Its weights' relative error, 0.092, is below that of Q4_0, 0.113
# (`config.ggml_types.TYPES`).
NF4_COUNTS_AS = "Q4_0"
# (KLD, share of tokens with another first choice) of that model at Q8_0, Q6_K, Q4_K_M and Q2_K, from the same
# page. The curve through them fits small models too: SmolLM2-135M, 0.0765 nats and 12.9 % measured, 12.4 % by
# the curve; 0.315 nats and 20.5 % measured, 24.5 % by the curve.
OTHER_TOP = ((0.001355, 0.02326), (0.005452, 0.03969), (0.031273, 0.08099), (0.445132, 0.28862))
# Whole chats cost more than windows of Wikitext, whose first half llama-perplexity leaves out: 0.498 against
# 0.230 nats, SmolLM2-135M at Q4_0 (measured), 2.2 times. The rest is for models that lose more than the
# published one.
SLACK = 4.0
# SmolLM2-135M loses 0.230 nats at Q4_0 by llama-perplexity (measured). The published model, 60 times as
# large, loses 0.0719. This is the power of the size between the two. Published in between: Qwen3.5-0.8B at
# Q4_K_M 0.036 (with an importance matrix), by this power 0.060.
SIZE_POWER = 0.285
# Limits for levels without a published figure: only what is plainly broken is refused.
UNPUBLISHED_KLD = 0.5
UNPUBLISHED_SAME_TOP = 0.7
# No limit is above 0.5 nats, or this many times the published figure if that is more, because at that size a
# divergence saturates.
MOST_OVER = 1.5
# Most that llama.cpp's 8-bit activations may cost a GGUF (measured: 0.008 nats and 94.9 % on a Q4_K_M of
# 135M). Beyond, one of the two sides computes another model. An adapter may add its share to that.
MOST_SERVED_KLD = 0.05
LEAST_SERVED_SAME_TOP = 0.85
ADDED_BY_ADAPTER = 0.2


@dataclass(frozen=True)
class LevelLimit:
    """Largest mean KL divergence in nats, least share of positions with the same first choice, and source."""

    kld: float
    same_top: float
    source: str


def level_limit(level: str, parameters: float | None) -> LevelLimit:
    """Return the limit of `level` ("Q4_K_M", "Q4_K_M-imatrix", "nf4") for a model of `parameters` (None: not
    known); larger models get no less.
    """
    name = ModelName(level).level
    peer = NF4_COUNTS_AS if name == "NF4" else name
    if peer not in PUBLISHED_KLD:
        return LevelLimit(UNPUBLISHED_KLD, UNPUBLISHED_SAME_TOP, f"no figure is published for {name}")
    larger = max(1.0, (PUBLISHED_PARAMETERS / (parameters or PUBLISHED_PARAMETERS)) ** SIZE_POWER)
    most = max(UNPUBLISHED_KLD, MOST_OVER * PUBLISHED_KLD[peer])
    if SLACK * larger * PUBLISHED_KLD[peer] > most:
        return LevelLimit(
            float(f"{most:.3g}"),
            round(1 - other_top(most), 3),
            f"the ceiling; published for {PUBLISHED_MODEL}: {PUBLISHED_KLD[peer]:.3g}",
        )
    kld = float(f"{SLACK * larger * PUBLISHED_KLD[peer]:.3g}")
    size = ""
    if parameters and larger > 1.05:
        size = f", × {larger:.2g} for {parameters / 1e9:.2g} billion parameters"
    stands = f" ({name} counts as it)" if peer != name else ""
    return LevelLimit(
        kld,
        round(1 - other_top(kld), 3),
        f"{SLACK:g} × {PUBLISHED_KLD[peer]:.3g}, published for {PUBLISHED_MODEL} at {peer}{stands}{size}",
    )


def served_limit() -> LevelLimit:
    """Return the limit for an adapter on its GGUF: llama.cpp against training's own forward."""
    return LevelLimit(
        MOST_SERVED_KLD * (1 + ADDED_BY_ADAPTER),
        LEAST_SERVED_SAME_TOP - ADDED_BY_ADAPTER * (1 - LEAST_SERVED_SAME_TOP),
        "7 times what llama.cpp's 8-bit activations cost a model of 135M",
    )


def other_top(kld: float) -> float:
    """Return the share of positions with another first choice that goes with a mean KL divergence:
    `OTHER_TOP`, interpolated linearly on logarithms.
    """
    (low, below), (high, above) = next(
        (pair for pair in pairwise(OTHER_TOP) if kld <= pair[1][0]), OTHER_TOP[-2:]
    )
    power = log(above / below) / log(high / low)
    return exp(log(below) + power * log(kld / low))
