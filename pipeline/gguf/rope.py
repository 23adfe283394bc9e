"""Stretched rotary positions: the factors that a GGUF stores, and config.json's settings they come from.

Llama 3.1 and later were trained further for a longer context, with slow frequencies made slower (rope_type
llama3). Their GGUF contains no settings, only the divisor of each frequency, in one tensor. The settings that
were published are few, so those of a file are found by computing the factors of each.

Phi-3 and Phi-4-mini (rope_type longrope) list their factors in config.json, one set for contexts beyond the
original one and one for others. Their GGUF has both.

Gemma 4 (rope_type proportional) rotates a part of each head in layers without a window. Its GGUF has a factor
for each frequency, which is so large for the others that they stand still.
"""

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.gguf.header import FIRST_CONTEXT, LONG_FACTORS, SHORT_FACTORS, USUAL_ROPE_BASE, Header
from pipeline.gguf.tensors import Floats, GgufTensor
from pipeline.gguf.windows import FULL

LLAMA3 = "rope_freqs.weight"
TENSORS = (LLAMA3, LONG_FACTORS, SHORT_FACTORS)
STILL = 1e30  # factor of a frequency that does not rotate
TOLERANCE = 1e-5  # relative; both sides compute the factors in float32
# rope_parameters of the published config.json. Llama 3.1 and 3.3 have the first factor, Llama 3.2 the second.
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


def factors_of(config: Any) -> dict[str, Floats]:
    """Return the factors in the GGUF of a model, by the tensor's name, for transformers' configuration of the
    model: how much slower each frequency rotates than without its settings. Layers with a window have none.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    layer_type = FULL if FULL in rope else None
    rope = rope.get(FULL, rope)
    match rope.get("rope_type"):
        case "llama3" | "proportional":
            return {LLAMA3: _slowing(config, rope, layer_type)}
        case "longrope":
            return {
                LONG_FACTORS: np.asarray(rope["long_factor"], np.float32),
                SHORT_FACTORS: np.asarray(rope["short_factor"], np.float32),
            }
    return {}


def _slowing(config: Any, rope: dict[str, Any], layer_type: str | None) -> Floats:
    # These are the functions that transformers itself runs with.
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    slowed = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", layer_type=layer_type)[0].numpy()
    plain = rope["rope_theta"] ** (-np.arange(len(slowed)) / len(slowed))
    with np.errstate(divide="ignore"):
        return np.asarray(np.minimum(plain / slowed, STILL), np.float32)


def stored_factors(header: Header, file: Path) -> dict[str, Floats]:
    """Return the factors in a GGUF by the tensor's name."""
    factors = {}
    for name in TENSORS:
        if name in header.tensors:
            shape, ggml_type = header.tensors[name]
            tensor = GgufTensor(name, shape[::-1], ggml_type, file, header.start + header.offsets[name])
            factors[name] = tensor.values(0, tensor.rows).reshape(-1)
    return factors


def first_context(header: Header) -> int | None:
    """Return the largest context in which llama.cpp uses the short ones of a file's listed factors; None for
    a file without such factors.
    """
    if LONG_FACTORS not in header.tensors:
        return None
    architecture = header.fields["general.architecture"]
    context = header.fields.get(f"{architecture}.{FIRST_CONTEXT}")
    return context if isinstance(context, int) else None


def same_factors(stored: Floats, computed: Floats) -> bool:
    """Return True if the factors of a file equal the computed ones."""
    return stored.shape == computed.shape and np.allclose(stored, computed, rtol=TOLERANCE, atol=0)


def published_settings(header: Header, file: Path) -> dict[str, Any] | None:
    """Return the `rope_parameters` of config.json whose factors are those in a GGUF; None if it has no
    factors of this kind, or no published settings give them.
    """
    stored = stored_factors(header, file).get(LLAMA3)
    if stored is None:
        return None
    from transformers import LlamaConfig

    architecture = header.fields["general.architecture"]
    base = header.fields.get(f"{architecture}.rope.freq_base", USUAL_ROPE_BASE)
    for settings in PUBLISHED:
        rope = {**settings, "rope_theta": base}
        config = LlamaConfig(head_dim=2 * len(stored), rope_parameters=dict(rope))
        if same_factors(stored, factors_of(config)[LLAMA3]):
            return rope
    return None
