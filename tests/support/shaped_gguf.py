"""A Llama of any shape, with experts or without, as a GGUF of zeros, to hold the planner's bytes against."""

from pathlib import Path
from typing import Any

import numpy as np
import tiny

from pipeline.planning.model.config_file import read_shape
from pipeline.planning.model.shape import Shape

LAYERS, VOCABULARY = 16, 261


def shaped(hidden: int, inner: int, tied: bool, kv_heads: int, biased: bool = False) -> Shape:
    """A Llama of `LAYERS` layers and four heads, whose linears have biases if `biased`."""
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": 4,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": tied,
        "attention_bias": biased,
        "mlp_bias": biased,
    }
    return read_shape(config)


def mixture(hidden: int, inner: int, experts: int) -> Shape:
    """A Qwen2-MoE of `LAYERS` layers, whose shared expert is as wide as the others, with four heads."""
    config = {
        "model_type": "qwen2_moe",
        "hidden_size": hidden,
        "moe_intermediate_size": inner,
        "shared_expert_intermediate_size": inner,
        "num_experts": experts,
        "num_experts_per_tok": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
    }
    return read_shape(config)


def written(file: Path, shape: Shape) -> Path:
    """A GGUF of zeros with every tensor of `shape`."""
    names = {
        "q_proj": "attn_q",
        "k_proj": "attn_k",
        "v_proj": "attn_v",
        "o_proj": "attn_output",
        "gate_proj": "ffn_gate",
        "up_proj": "ffn_up",
        "down_proj": "ffn_down",
    }
    experts = shape.routing.number if shape.routing else 0
    if experts:
        names |= {name: f"{names[name]}_shexp" for name in ("gate_proj", "up_proj", "down_proj")}
        names |= {f"experts.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")}
        names["shared_expert_gate"] = "ffn_gate_inp_shexp"
    tensors: dict[str, Any] = {}
    if experts:  # a Llama's own MLP
        tensors |= {f"blk.0.ffn_{part}.weight": None for part in ("gate", "up", "down")}
    tensors |= {
        f"blk.{layer}.{names[linear.name]}.weight": np.zeros(
            (linear.copies, linear.outputs, linear.inputs)[linear.copies == 1 :], np.float16
        )
        for layer in range(LAYERS)
        for linear in shape.linears
    }
    for layer in range(LAYERS if experts else 0):
        tensors[f"blk.{layer}.ffn_gate_inp.weight"] = np.zeros((experts, shape.hidden), np.float32)
        tensors[f"blk.{layer}.ffn_gate_inp_shexp.weight"] = np.zeros(shape.hidden, np.float32)
    tensors |= {
        f"blk.{layer}.{names[linear.name]}.bias": np.zeros(linear.outputs, np.float32)
        for layer in range(LAYERS)
        for linear in shape.linears
        if linear.bias
    }
    norms = [
        "output_norm",
        *(f"blk.{layer}.{ggml_type}_norm" for layer in range(LAYERS) for ggml_type in ("attn", "ffn")),
    ]
    tensors |= {f"{name}.weight": np.zeros(shape.hidden, np.float32) for name in norms}
    tensors |= {
        f"{name}.weight": np.zeros((VOCABULARY, shape.hidden), np.float16)
        for name in ("token_embd", *([] if shape.tied else ["output"]))
    }
    return tiny.tiny_gguf(
        file,
        tensors=tensors,
        llama__block_count=LAYERS,
        llama__embedding_length=shape.hidden,
        llama__feed_forward_length=shape.intermediate,
        llama__attention__head_count_kv=shape.kv_heads,
        llama__rope__dimension_count=shape.head_dim,
        **({"llama__expert_count": experts, "llama__expert_used_count": 2} if experts else {}),
    )
