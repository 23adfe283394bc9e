"""LFM2, a hybrid of attention and short convolutions."""

from typing import Any

from pipeline.gguf.families import mixed_layers
from pipeline.gguf.families.base import Config, Family, Fields, Settings


class Lfm2(Family):
    """LFM2."""

    def size(self, header_field: str, values: Fields) -> Any:
        """Return the value of a field; that of the key heads is listed by layer."""
        return mixed_layers.size(header_field, values)

    def own_settings(self, values: Fields, settings: Config) -> Settings:
        """Return the types of the layers; and that the header has the width after the adjustment."""
        types = mixed_layers.layer_types(values, settings["num_hidden_layers"], "conv")
        return {"block_auto_adjust_ff_dim": False, "layer_types": types}


LFM2 = Lfm2(
    "lfm2",
    ("Lfm2ForCausalLM",),
    trained_on=True,
    model_type="lfm2",
    settings={"norm_eps": "attention.layer_norm_rms_epsilon", "conv_L_cache": "shortconv.l_cache"},
    other_fields=mixed_layers.FIELDS,
    linears={
        "conv.in_proj": "shortconv.in_proj",
        "conv.out_proj": "shortconv.out_proj",
        "self_attn.out_proj": "attn_output",
        "feed_forward.w1": "ffn_gate",
        "feed_forward.w2": "ffn_down",
        "feed_forward.w3": "ffn_up",
    },
)
