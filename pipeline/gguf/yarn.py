"""Rotary positions stretched by YaRN (arXiv:2309.00071): the factors of a GGUF as llama.cpp computes them,
and of a config.json as transformers does.

llama.cpp reads all of the settings for few families. For the others it uses the default ones, whatever the
file contains.
"""

import math
from collections.abc import Mapping
from typing import Any

from pipeline.gguf.header import FIRST_CONTEXT

TYPE = "rope.scaling.type"
FACTOR = "rope.scaling.factor"
FACTOR_BEFORE = "rope.scale_linear"  # former name of the factor's field
CONTEXT = "context_length"
BETA_FAST = "rope.scaling.yarn_beta_fast"
BETA_SLOW = "rope.scaling.yarn_beta_slow"
ATTENTION = "rope.scaling.yarn_attn_factor"
LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
USUAL = {BETA_FAST: 32.0, BETA_SLOW: 1.0}
# Fields of YaRN's settings, besides those that other stretched positions have.
FIELDS = (FIRST_CONTEXT, BETA_FAST, BETA_SLOW, ATTENTION)


def magnitude(factor: float, share: float = 1.0) -> float:
    """Return the multiplier of cosines and sines for `factor`, which keeps attention as sharp as it was."""
    return 1.0 + 0.1 * share * math.log(factor) if factor > 1 else 1.0


def number(stated: Mapping[str, Any], field: str, usual: float) -> float:
    """Return the number in a field of a header, `usual` if the field is missing or not a number."""
    value = stated.get(field)
    return value if isinstance(value, int | float) else usual


def factor_in(stated: Mapping[str, Any]) -> float:
    """Return the factor in a header with the fields `stated`, by either of its names; 1 for none."""
    return number(stated, FACTOR, number(stated, FACTOR_BEFORE, 1.0)) or 1.0


def by_file(stated: Mapping[str, Any], read: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that llama.cpp computes YaRN with, by fields, for a header with the fields `stated`,
    whose names lack the family's prefix; empty if it computes no YaRN. Of these, `read` are the fields from
    which it reads more settings than the factor and the first context.
    """
    if stated.get(TYPE) != "yarn":
        return {}
    factor = factor_in(stated)
    share = number(read, LOG_MULTIPLIER, 0.0)
    return {
        FACTOR: factor,
        FIRST_CONTEXT: number(stated, FIRST_CONTEXT, number(stated, CONTEXT, 0)),
        **{field: number(read, field, usual) for field, usual in USUAL.items()},
        ATTENTION: magnitude(factor) / magnitude(factor, share) if share else magnitude(factor),
    }


def by_config(rope: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of `by_file` for `rope_parameters` of a config.json, as transformers computes them;
    empty if it specifies no YaRN.
    """
    if (rope.get("rope_type") or rope.get("type")) != "yarn":
        return {}
    factor = rope.get("factor") or 1.0
    attention = rope.get("attention_factor")
    if attention is None:
        attention = magnitude(factor)
        if rope.get("mscale") and rope.get("mscale_all_dim"):
            attention = magnitude(factor, rope["mscale"]) / magnitude(factor, rope["mscale_all_dim"])
    return {
        FACTOR: factor,
        FIRST_CONTEXT: rope.get("original_max_position_embeddings", 0),
        BETA_FAST: rope.get("beta_fast") or USUAL[BETA_FAST],
        BETA_SLOW: rope.get("beta_slow") or USUAL[BETA_SLOW],
        ATTENTION: attention,
    }


def is_close(one: float, other: float) -> bool:
    """Return True for numbers that are the same in float32."""
    return math.isclose(one, other, rel_tol=1e-6)
