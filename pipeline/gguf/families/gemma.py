"""Gemma. Its norms multiply by one more than their weight, until Gemma 4.

The scores of the attention of Gemma 2 and 3 are divided by the root of `query_pre_attn_scalar`. llama.cpp
uses the width of a head, except for the largest model, which it recognizes by the number of its layers.
"""

from pipeline.gguf.families.base import Config, Factors, Family, Fields, Settings
from pipeline.gguf.header import LOCAL_ROPE_BASE, USUAL_ROPE_BASE
from pipeline.gguf.windows import FULL, WINDOW, WINDOWED, every


class Gemma(Family):
    """Gemma with norms whose sum with one is in the file."""

    def adds_one(self, tensor: str) -> bool:
        """Return True for a norm."""
        return tensor.endswith("norm.weight")


class Gemma2(Gemma):
    """Gemma with a window in every second layer."""

    def assumed_settings(self, config: Config) -> Settings:
        """Return the scale of the scores and the layers with a window."""
        layers = config["num_hidden_layers"]
        return {**score_scale(config, is_largest=layers == 46), "layer_types": every(2, layers)}


class Gemma3(Gemma):
    """Gemma with a window in five of six layers, which have a rotary base of their own."""

    def assumed_settings(self, config: Config) -> Settings:
        """Return the scale of the scores and the layers with a window."""
        layers = config["num_hidden_layers"]
        return {**score_scale(config, is_largest=layers == 62), "layer_types": every(6, layers)}

    def rope_parameters(self, rope: Settings, values: Fields, factors: Factors) -> Settings:
        """Return `rope_parameters` by type of layer."""
        rope = super().rope_parameters(rope, values, factors)
        local = values.get(LOCAL_ROPE_BASE, USUAL_ROPE_BASE)
        return {FULL: rope, WINDOWED: rope | {"rope_theta": local}}


def score_scale(config: Config, *, is_largest: bool) -> Settings:
    """Return the setting by whose root llama.cpp divides the scores."""
    share = config["hidden_size"] // config["num_attention_heads"]
    return {"query_pre_attn_scalar": share if is_largest else config.get("head_dim", share)}


GEMMA = Gemma("gemma", ("GemmaForCausalLM",))
GEMMA2 = Gemma2(
    "gemma2",
    ("Gemma2ForCausalLM",),
    trained_on=True,
    model_type="gemma2",
    settings={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "sliding_window": WINDOW,
    },
)
GEMMA3 = Gemma3(
    "gemma3",
    ("Gemma3ForCausalLM",),
    trained_on=True,
    model_type="gemma3_text",
    settings={"sliding_window": WINDOW},
    other_fields=(LOCAL_ROPE_BASE,),
)
GEMMA4 = Family(
    "gemma4",
    ("Gemma4ForCausalLM",),
    settings={
        "head_dim": "attention.key_length_swa",
        "sliding_window": WINDOW,
        "final_logit_softcapping": "final_logit_softcapping",
        "num_kv_shared_layers": "attention.shared_kv_layers",
    },
    own_vocabulary=True,
)
