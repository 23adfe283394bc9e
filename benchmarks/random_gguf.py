"""A random Qwen2 as a Q4_K_M GGUF with config.json and tokenizer, without llama.cpp: what a benchmark of
packed training needs on any machine.
"""

from pathlib import Path
from typing import Any

from benchmarks.random_base import SHAPES, write_config

# float16 scales by ggml type: their bytes in a block, and values that make weights of about ±0.02
SCALES = {12: ((0, 4e-5), (2, 4e-5)), 14: ((208, 1.5e-5),)}
Q4_K, Q6_K = 12, 14


def ggml_type_of(name: str, layer: int, layers: int) -> int:
    """The type that llama-quantize gives a tensor at Q4_K_M (llama-quant.cpp): the value and down projections
    of half the layers get more bits.
    """
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    return Q6_K if name == "output" or (more and name in ("attn_v", "ffn_down")) else Q4_K


def write_random_gguf(folder: Path, shape: str) -> Path:
    """A random Qwen2 of a shape in SHAPES, its head untied, as a Q4_K_M GGUF with config.json and tokenizer;
    the folder.

    The blocks of a type are one random tile, repeated: neither speed nor memory depends on the values.
    """
    import gguf
    import numpy as np

    write_config(folder, shape)
    sizes = SHAPES[shape]
    hidden, inner, layers = sizes["hidden_size"], sizes["intermediate_size"], sizes["num_hidden_layers"]
    kv = hidden // sizes["num_attention_heads"] * sizes["num_key_value_heads"]
    random = np.random.default_rng(0)

    def quantized(ggml_type: int, rows: int, columns: int) -> Any:
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(ggml_type)]
        tile = random.integers(0, 256, (1 << 12, size), dtype=np.uint8)
        for place, scale in SCALES[ggml_type]:
            tile[:, place : place + 2] = np.full((len(tile), 1), scale, np.float16).view(np.uint8)
        return np.resize(tile, (rows, columns // int(block) * int(size)))

    writer = gguf.GGUFWriter(folder / "model.gguf", "qwen2")

    def add(name: str, ggml_type: int, tile: Any) -> None:
        writer.add_tensor(f"{name}.weight", tile, raw_dtype=gguf.GGMLQuantizationType(ggml_type))

    for name in ("token_embd", "output"):
        ggml_type = ggml_type_of(name, 0, layers)
        add(name, ggml_type, quantized(ggml_type, sizes["vocab_size"], hidden))
    linears = {
        "attn_q": (hidden, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, hidden),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    tiles: dict[tuple[str, int], Any] = {}
    for layer in range(layers):
        for name, (rows, columns) in linears.items():
            ggml_type = ggml_type_of(name, layer, layers)
            if (name, ggml_type) not in tiles:
                tiles[name, ggml_type] = quantized(ggml_type, rows, columns)
            add(f"blk.{layer}.{name}", ggml_type, tiles[name, ggml_type])
        for name, size in (("attn_q", hidden), ("attn_k", kv), ("attn_v", kv)):
            writer.add_tensor(f"blk.{layer}.{name}.bias", np.zeros(size, np.float32))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(hidden, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder
