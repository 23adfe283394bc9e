"""Settings, most of them of attention, that llama.cpp assumes for a family. No field of a GGUF contains them,
so a model with another config.json computes something else there. Also which layers attend to a window, if a
field can tell.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.gguf.families import WINDOW, Family

# entries of layer_types in config.json
WINDOWED = "sliding_attention"
FULL = "full_attention"
# Field of a header that tells for each layer whether it attends to a window, or the interval of those that
# don't.
WINDOWS = "attention.sliding_window_pattern"


def assumed_settings(family: Family, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of config.json that llama.cpp knows by the family, with the values that it computes
    with for a model of the sizes in `config`.

    The scores of Gemma's attention are divided by the root of `query_pre_attn_scalar`. llama.cpp uses the
    width of a head, except for the largest model, which it recognizes by the number of its layers.

    The embeddings of a Falcon-H1 are multiplied when it is converted, and the head is the same tensor if the
    two are tied.
    """
    layers = config["num_hidden_layers"]
    settings: dict[str, Any] = {}
    if family.largest:
        share = config["hidden_size"] // config["num_attention_heads"]
        is_largest = layers == family.largest
        settings["query_pre_attn_scalar"] = share if is_largest else config.get("head_dim", share)
    if family.full_every:
        settings["layer_types"] = every(family.full_every, layers)
    if family.multiplied and config.get("tie_word_embeddings"):
        settings["lm_head_multiplier"] = config["embedding_multiplier"]
    return settings


def dropped_window(family: Family, config: Mapping[str, Any]) -> int | None:
    """Return the number of tokens that a model of a config.json attends to, if llama.cpp lets this family
    attend to more; None if it computes the same for every context of the model.

    Phi-3-mini-4k and Mistral 7B v0.1 were trained with a window. No GGUF of theirs has one that is read.
    """
    window = config.get("sliding_window")
    types = config.get("layer_types")
    if not isinstance(window, int) or WINDOW in family.factors.values() or (types and WINDOWED not in types):
        return None
    return window if window < (config.get("max_position_embeddings") or 0) else None


def every(number: int, layers: int) -> list[str]:
    """Return layer_types: layers attend to a window, but every `number`-th attends to all tokens."""
    return [WINDOWED if layer % number else FULL for layer in range(1, layers + 1)]


def listed_layer_types(family: Family, stated: Mapping[str, Any], layers: int) -> list[str] | None:
    """Return layer_types as llama.cpp reads them from a header with the fields `stated`, whose names lack the
    family's prefix; None if llama.cpp has no meaning for the header's value.
    """
    windows = stated.get(WINDOWS, family.listed_windows)
    if isinstance(windows, int) and windows > 0:
        return every(windows, layers)
    if not isinstance(windows, list) or len(windows) != layers or not set(windows) <= {0, 1}:
        return None
    return [WINDOWED if has_window else FULL for has_window in windows]
