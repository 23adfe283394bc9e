"""A Llama of any shape as a GGUF of zeros, to hold the planner's bytes against."""

from pathlib import Path

import numpy as np
import tiny

from pipeline.planning.shape import Shape, read_shape

LAYERS, VOCABULARY = 16, 261


def shaped(hidden: int, inner: int, tied: bool, kv_heads: int) -> Shape:
    """A Llama of `LAYERS` layers and four heads."""
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": 4,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": tied,
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
    tensors = {
        f"blk.{layer}.{names[linear.name]}.weight": np.zeros((linear.outputs, linear.inputs), np.float16)
        for layer in range(LAYERS)
        for linear in shape.linears
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
    )
