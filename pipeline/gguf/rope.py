"""Stretched rotary positions of Llama 3.1 and later: the factors that a GGUF stores, and the settings of
config.json that they follow from.

These models were trained further for a longer context, with slow frequencies made slower (rope_type llama3).
Their GGUF holds no settings, only by how much each frequency is divided, in one tensor. The settings that
were published are few, so that those of a file are found by computing the factors of each.
"""

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.gguf.header import Header
from pipeline.gguf.tensors import Floats, GgufTensor

FACTORS = "rope_freqs.weight"
TOLERANCE = 1e-5  # relative; both sides compute the factors in float32
USUAL_BASE = 10_000.0  # what llama.cpp takes if a file doesn't say it
# rope_parameters of the published config.json: Llama 3.1 and 3.3 have the first factor, Llama 3.2 the second
PUBLISHED = tuple(
    {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    for factor in (8.0, 32.0)
)


def llama3_factors(config: Any) -> Floats | None:
    """Return the factors of transformers' configuration of a model as llama.cpp wants them: how much slower
    each frequency turns than without the settings. None if the model has no such settings.

    They are taken from the function that transformers itself runs with.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "llama3":
        return None
    slowed = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].numpy()
    plain = rope["rope_theta"] ** (-np.arange(len(slowed)) / len(slowed))
    return np.asarray(plain / slowed, np.float32)


def same_factors(stored: Floats | None, computed: Floats | None) -> bool:
    """Return True if the factors of a file are those that were computed, or there are none of either."""
    if stored is None or computed is None:
        return stored is computed
    return stored.shape == computed.shape and np.allclose(stored, computed, rtol=TOLERANCE, atol=0)


def stored_factors(header: Header, file: Path) -> Floats | None:
    """Return the factors in a GGUF; None if it has none."""
    if FACTORS not in header.tensors:
        return None
    shape, ggml_type = header.tensors[FACTORS]
    tensor = GgufTensor(FACTORS, shape[::-1], ggml_type, file, header.start + header.offsets[FACTORS])
    return tensor.values(0, tensor.rows).reshape(-1)


def published_settings(header: Header, file: Path) -> dict[str, Any] | None:
    """Return the `rope_parameters` of config.json whose factors are those in a GGUF; None if it has no
    factors, or no published settings make them.
    """
    stored = stored_factors(header, file)
    if stored is None:
        return None
    from transformers import LlamaConfig

    architecture = header.fields["general.architecture"]
    base = header.fields.get(f"{architecture}.rope.freq_base", USUAL_BASE)
    for settings in PUBLISHED:
        rope = {**settings, "rope_theta": base}
        computed = llama3_factors(LlamaConfig(head_dim=2 * len(stored), rope_parameters=dict(rope)))
        if computed is not None and same_factors(stored, computed):
            return rope
    return None
