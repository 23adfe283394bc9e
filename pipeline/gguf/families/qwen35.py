"""Qwen3.5, a hybrid of attention and gated delta nets.

Its file may have layers for drafting (MTP) after its own. No model of transformers has them.
"""

from typing import TYPE_CHECKING, Any

from pipeline.gguf.families import mixed_layers
from pipeline.gguf.families.base import Config, Family, Fields, Settings, Untrainable
from pipeline.gguf.header import DRAFT_LAYERS

if TYPE_CHECKING:
    from pipeline.gguf.delta_heads import DeltaHeads


class Qwen35(Family):
    """Qwen3.5."""

    def size(self, header_field: str, values: Fields) -> Any:
        """Return the value of a field; that of the key heads may be listed by layer."""
        return mixed_layers.size(header_field, values)

    def own_settings(self, values: Fields, settings: Config) -> Settings:
        """Return the number and types of the layers without those for drafting, and the width of the value
        heads of delta nets.
        """
        in_file = settings["num_hidden_layers"]
        layers = in_file - values.get(DRAFT_LAYERS, 0)
        types = mixed_layers.layer_types(values, in_file, "linear_attention")
        return {
            "num_hidden_layers": layers,
            "layer_types": types[:layers],
            "linear_value_head_dim": value_width(values, settings),
        }

    def adds_one(self, tensor: str) -> bool:
        """Return True for a norm, except for those of delta nets, which multiply by their weight."""
        return tensor.endswith("norm.weight") and not tensor.endswith(".ssm_norm.weight")

    def delta_heads(self, config: Config) -> "DeltaHeads | None":
        """Return the heads of its delta nets."""
        if "linear_num_value_heads" not in config:
            return None
        # It imports NumPy, which planning from a header never needs.
        from pipeline.gguf.delta_heads import DeltaHeads

        return DeltaHeads(
            config["linear_num_key_heads"],
            config["linear_num_value_heads"],
            config["linear_key_head_dim"],
            config["linear_value_head_dim"],
        )


def value_width(values: Fields, settings: Config) -> int:
    """Return the width of a value head. Raises `Untrainable` if there is none, or if the value heads can't be
    distributed over the key heads.
    """
    keys = settings["linear_num_key_heads"]
    count = settings["linear_num_value_heads"]
    inner = values.get(mixed_layers.INNER)
    if min(keys, count) < 1 or count % keys:
        raise Untrainable(f"has {count} value heads and {keys} key heads in a layer")
    if not isinstance(inner, int) or inner % count:
        raise Untrainable(f"has no width of its {count} value heads ({mixed_layers.INNER}: {inner})")
    return int(inner // count)


QWEN35 = Qwen35(
    "qwen35",
    ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    trained_on=True,
    model_type="qwen3_5_text",
    settings={
        "linear_conv_kernel_dim": "ssm.conv_kernel",
        "linear_key_head_dim": "ssm.state_size",
        "linear_num_key_heads": "ssm.group_count",
        "linear_num_value_heads": "ssm.time_step_rank",
    },
    # Sections of images' positions are the same in text.
    other_fields=(*mixed_layers.FIELDS, DRAFT_LAYERS, "rope.dimension_sections"),
    partial_rotary=True,
    linears={
        "linear_attn.in_proj_qkv": "attn_qkv",
        "linear_attn.in_proj_z": "attn_gate",
        "linear_attn.in_proj_a": "ssm_alpha",
        "linear_attn.in_proj_b": "ssm_beta",
        "linear_attn.out_proj": "ssm_out",
    },
)
