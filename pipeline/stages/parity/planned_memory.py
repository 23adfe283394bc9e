"""What a llama-server on the CPU may need for a GGUF, by the file's header."""

from pathlib import Path

from pipeline.gguf.file import check_gguf, kv_cache_bytes
from pipeline.gguf.header import tensor_bytes

# ggml types that llama.cpp may hold twice on a CPU: as the file has them, and repacked for its kernels
# (ggml-cpu/repack.cpp)
REPACKED = ("Q1_0", "Q2_K", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4")
UBATCH = 512  # positions that llama-server evaluates at once, its default
ROWS = 8  # of the widest layer that a position has in float32 at once
FIXED_BYTES = 128 << 20  # program, threads, HTTP: 37 to 54 MB were measured on 2 cores
TOKEN_BYTES = 512  # of a token in llama.cpp's tables, its merges included: about 270 were measured


def planned_bytes(model: Path, ctx_size: int, cached_tokens: int) -> int | None:
    """Bytes that a CPU server needs at most: the file, its repacked tensors once more, the cache, kept
    prompts, a batch's activations, tables.

    Repacked tensors are in memory twice while the file is mapped (measured: a Q4_0 file of 90 MB took 180).
    llama-server keeps the cache of every prompt that it has answered. None where the header does not give the
    cache's size.
    """
    from gguf import GGMLQuantizationType

    header = check_gguf(model)
    cache = kv_cache_bytes(model, ctx_size + cached_tokens)
    if cache is None:
        return None
    twice = sum(
        tensor_bytes(name, shape, kind)
        for name, (shape, kind) in header.tensors.items()
        if GGMLQuantizationType(kind).name in REPACKED
    )
    tokens = len(header.fields.get("tokenizer.ggml.tokens", []))
    widest = max(size for shape, _ in header.tensors.values() for size in shape[:1])
    return (
        model.stat().st_size + twice + cache + UBATCH * ROWS * widest * 4 + tokens * TOKEN_BYTES + FIXED_BYTES
    )
