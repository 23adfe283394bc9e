"""What a GGUF that llama.cpp's tools wrote holds: is it whole, how large, which tensor types (GGUF v3, ggml/docs/gguf.md)."""

from collections import Counter
from pathlib import Path
from typing import Any

from pipeline.errors import DataError

K_BLOCK = 256  # K- and I-quants pack rows in blocks of 256 weights; other row lengths fall back to types with blocks of 32
PLAIN_TYPES = ("F32", "F16", "BF16")
HEADS = ("output.weight", "token_embd.weight")


def check_gguf(path: Path) -> None:
    """Read a GGUF back: header, tensors, and that no tensor's bytes lie behind the file's end. Raises `DataError`."""
    reader = _open(path)
    end = max((int(tensor.data_offset) + int(tensor.n_bytes) for tensor in reader.tensors), default=0)
    if not reader.tensors or end > path.stat().st_size:
        raise DataError(f"{path} holds {len(reader.tensors)} tensors that need {end} bytes, the file has {path.stat().st_size}: run the stage again")


def describe(path: Path) -> dict[str, Any]:
    """Bytes, parameters, bits per weight (of the tensors), tensors by type, and those that fell back to another type.

    A tensor fell back where its row length is no multiple of 256, so that llama.cpp had to take a type of smaller
    blocks than the level's K- or I-quant. The count is llama-quantize's own: an output matrix (or the embedding
    that is tied to it) gets Q8_0 there by rule, which its warning doesn't count.
    """
    from gguf import LlamaFileType

    reader = _open(path)
    parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    tensor_bytes = sum(int(tensor.n_bytes) for tensor in reader.tensors)
    field = reader.get_field("general.file_type")
    level = LlamaFileType(int(field.contents())).name if field else ""
    block_level = "_K" in level or "IQ" in level
    fallbacks: Counter[str] = Counter(
        tensor.tensor_type.name
        for tensor in reader.tensors
        if block_level
        and len(tensor.shape) > 1
        and int(tensor.shape[0]) % K_BLOCK
        and tensor.tensor_type.name not in PLAIN_TYPES
        and tensor.name not in HEADS
    )
    return {
        "bytes": path.stat().st_size,
        "parameters": parameters,
        "bits_per_weight": round(tensor_bytes * 8 / parameters, 3),
        "tensors": len(reader.tensors),
        "tensor_types": dict(sorted(Counter(tensor.tensor_type.name for tensor in reader.tensors).items())),
        "fallback_tensors": sum(fallbacks.values()),
        "fallback_types": dict(sorted(fallbacks.items())),
    }


def kv_cache_bytes(path: Path, ctx_size: int) -> int | None:
    """Bytes of a float16 key-value cache of `ctx_size` tokens: layers × kv heads × (key + value length) × 2 each.

    None where the header doesn't say (layers with different heads, for example).
    """
    reader = _open(path)

    def field(name: str) -> Any:
        found = reader.get_field(name)
        return found.contents() if found else None

    prefix = field("general.architecture")
    layers, heads, width = field(f"{prefix}.block_count"), field(f"{prefix}.attention.head_count"), field(f"{prefix}.embedding_length")
    kv_heads = field(f"{prefix}.attention.head_count_kv") or heads
    if not (isinstance(layers, int) and isinstance(heads, int) and isinstance(kv_heads, int) and isinstance(width, int)):
        return None
    key = field(f"{prefix}.attention.key_length") or width // heads
    value = field(f"{prefix}.attention.value_length") or width // heads
    return int(layers * kv_heads * (key + value) * 2 * ctx_size)


def _open(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (ValueError, OSError, IndexError) as error:
        raise DataError(f"{path} is not a whole GGUF ({error}): run the stage that makes it again") from error
