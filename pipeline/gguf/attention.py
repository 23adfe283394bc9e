"""Settings of attention that llama.cpp takes for granted of a family: no field of a GGUF holds them, so that
a model with another config.json is another model there.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.gguf.families import Family

# entries of layer_types in config.json
WINDOWED = "sliding_attention"
FULL = "full_attention"


def assumed_settings(family: Family, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of config.json that llama.cpp knows by the family, with the values that it computes
    with for a model of the sizes in `config`.

    The scores of Gemma's attention are divided by the root of `query_pre_attn_scalar`. llama.cpp takes the
    width of a head, but for the largest model, which it knows by the count of its layers.
    """
    layers = config["num_hidden_layers"]
    settings: dict[str, Any] = {}
    if family.largest:
        share = config["hidden_size"] // config["num_attention_heads"]
        is_largest = layers == family.largest
        settings["query_pre_attn_scalar"] = share if is_largest else config.get("head_dim", share)
    if family.full_every:
        settings["layer_types"] = [
            WINDOWED if number % family.full_every else FULL for number in range(1, layers + 1)
        ]
    return settings
