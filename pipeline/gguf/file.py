"""Check and describe a GGUF's contents: completeness, size, tensor types (GGUF v3, ggml/docs/gguf.md)."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.core.errors import DataError
from pipeline.core.publish import publishing
from pipeline.core.text import listed
from pipeline.gguf.header import Header, NotGguf, read_header, tensor_bytes

# K- and I-quants pack rows in blocks of 256 weights. Other row lengths fall back to types with blocks of 32,
# and rows that can't be divided by 32 either stay at 16 bit, in every level.
K_BLOCK = 256
SMALLEST_BLOCK = 32
PLAIN_TYPES = ("F32", "F16", "BF16")
# Names of llama.cpp's file types that are no level.
UNQUANTIZED = ("", "ALL_F32", "MOSTLY_F16", "MOSTLY_BF16")
# Field of a placeholder, a GGUF without tensors for one that is not needed. Its value is the reason.
NOT_MADE = "quench.not_made"
HEADS = ("output.weight", "token_embd.weight")


def check_gguf(path: Path) -> Header:
    """Read a GGUF's header and check that the file contains every tensor listed there. Raises `DataError`."""
    header = _read(path)
    if not header.tensors and (why := header.fields.get(NOT_MADE)):
        raise DataError(
            "Q-GGUF-004", f"{path} was not made, for {why}: change that, then run `snakemake convert`"
        )
    if not header.tensors:
        raise DataError("Q-GGUF-003", f"{path} holds no tensor: run the stage that makes it again")
    return header


def write_not_made(path: Path, why: str) -> None:
    """Write a GGUF without tensors in place of one that is not needed, because a stage's outputs are always
    the same files, so that all graphs agree.
    """
    from gguf import GGUFWriter

    with publishing(path) as aside:
        writer = GGUFWriter(aside, "none")
        writer.add_string(NOT_MADE, why)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()


def is_made(path: Path) -> bool:
    """Return False for a placeholder that `write_not_made` wrote.

    Raises `DataError` if the file is damaged.
    """
    return NOT_MADE not in _read(path).fields


def _read(path: Path) -> Header:
    try:
        return read_header(path)
    except (NotGguf, OSError) as error:
        raise DataError(
            "Q-GGUF-003", f"{path} is not a complete GGUF ({error}): run the stage that makes it again"
        ) from error


def describe(path: Path) -> dict[str, Any]:
    """Return bytes, parameters, bits per weight (of the tensors), tensors by type, and those that fell back
    to another type.

    A tensor falls back if its row length is not a multiple of 256: llama.cpp then uses a type of smaller
    blocks than the level's K- or I-quant. One whose row length is not a multiple of 32 stays at 16 bit,
    whatever the level. The count is llama-quantize's own: an output matrix (or the embedding that is tied to
    it) gets Q8_0 there by rule, which its warning doesn't count.
    """
    from gguf import GGMLQuantizationType, LlamaFileType

    header = check_gguf(path)
    types = {name: GGMLQuantizationType(ggml_type).name for name, (_, ggml_type) in header.tensors.items()}
    file_type = header.fields.get("general.file_type")
    level = LlamaFileType(file_type).name if file_type is not None else ""
    fallbacks: Counter[str] = Counter(
        types[name]
        for name, (shape, _) in header.tensors.items()
        if len(shape) > 1 and _fell_back(level, name, types[name], shape[0])
    )
    return {
        "bytes": path.stat().st_size,
        "parameters": header.parameters,
        "bits_per_weight": bits_per_weight(header),
        "tensors": len(types),
        "tensor_types": dict(sorted(tensor_types(header).items())),
        "fallback_tensors": sum(fallbacks.values()),
        "fallback_types": dict(sorted(fallbacks.items())),
    }


def _fell_back(level: str, name: str, ggml_type: str, columns: int) -> bool:
    """Return True if a matrix with rows of `columns` weights has another type than its level's."""
    if level in UNQUANTIZED or ggml_type == "F32":
        return False
    if ggml_type in PLAIN_TYPES:
        return columns % SMALLEST_BLOCK != 0
    is_packed_by_256 = "_K" in level or "IQ" in level
    return is_packed_by_256 and columns % K_BLOCK != 0 and name not in HEADS


def need_quantized(path: Path, level: str) -> None:
    """Raise `DataError` if no tensor of the file at `path` is quantized, though it was made for `level`."""
    header = check_gguf(path)
    if not set(tensor_types(header)) <= set(PLAIN_TYPES):
        return
    rows = sorted({shape[0] for shape, _ in header.tensors.values() if len(shape) > 1})
    raise nothing_quantized([level], rows)


def nothing_quantized(levels: Sequence[str], rows: Sequence[int]) -> DataError:
    """Return the error for a model with no row of a length in `rows` that a level could pack."""
    return DataError(
        "Q-GGUF-023",
        f"{listed(levels)} would quantize nothing: the model's rows have {listed(list(map(str, rows)))} "
        f"weights, and every level packs {SMALLEST_BLOCK} or more together, so all tensors would stay at 16 "
        "bit: take another base",
    )


def tensor_types(header: Header) -> Counter[str]:
    """Count the tensors of each GGML type."""
    from gguf import GGMLQuantizationType

    return Counter(GGMLQuantizationType(ggml_type).name for _, ggml_type in header.tensors.values())


def bits_per_weight(header: Header) -> float:
    """Return the average bits per weight over all tensors."""
    stored = sum(tensor_bytes(name, shape, ggml_type) for name, (shape, ggml_type) in header.tensors.items())
    return round(stored * 8 / header.parameters, 3)


def kv_cache_bytes(path: Path, ctx_size: int) -> int | None:
    """Return the bytes of a float16 key-value cache of `ctx_size` tokens: layers × kv heads × (key + value
    length) × 2 each.

    None if the header doesn't tell (layers with different heads, for example, or RWKV's, which have none).
    """
    fields = check_gguf(path).fields
    prefix = fields.get("general.architecture")
    layers, heads, width = (
        fields.get(f"{prefix}.{name}") for name in ("block_count", "attention.head_count", "embedding_length")
    )
    if not (isinstance(layers, int) and isinstance(heads, int) and isinstance(width, int) and heads > 0):
        return None
    kv_heads, key, value = (
        fields.get(f"{prefix}.attention.{name}") or usual
        for name, usual in (
            ("head_count_kv", heads),
            ("key_length", width // heads),
            ("value_length", width // heads),
        )
    )
    if not (isinstance(kv_heads, int) and isinstance(key, int) and isinstance(value, int)):
        return None
    return layers * kv_heads * (key + value) * 2 * ctx_size
