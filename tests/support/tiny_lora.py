"""Adapters for `tiny.tiny_gguf`, as GGUF files."""

from pathlib import Path
from typing import Any

import tiny

RANK, ALPHA = 4, 8.0
SHAPES = {
    "blk.0.attn_q": (32, 32),
    "blk.0.attn_k": (32, 32),
    "blk.0.attn_v": (32, 32),
    "blk.0.ffn_down": (32, 64),
}  # (out, in) of the base's


def tiny_lora(
    file: Path,
    *,
    seed: int = 1,
    arch: str = "llama",
    size: float = 0.5,
    tensors: dict[str, Any] | None = None,
    **changed: Any,
) -> Path:
    """A random adapter of rank 4 and alpha 8; the file. `tensors` adds or replaces tensors (None leaves one
    out), `changed` metadata.
    """
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(file, arch)
    writer.add_float32("adapter.lora.alpha", ALPHA)
    fields = {"general.type": "adapter", "adapter.type": "lora"} | {
        key.replace("__", "."): value for key, value in changed.items()
    }
    for key, value in fields.items():
        writer.add_uint32(key, value) if isinstance(value, int) else writer.add_string(key, value)
    random = np.random.default_rng(seed)
    weights: dict[str, Any] = {}
    for name, (rows, columns) in SHAPES.items():
        weights[f"{name}.weight.lora_a"] = random.normal(0, size, (RANK, columns)).astype(np.float32)
        weights[f"{name}.weight.lora_b"] = random.normal(0, size, (rows, RANK)).astype(np.float32)
    tiny.write_tensors(writer, weights | (tensors or {}))
    return file
