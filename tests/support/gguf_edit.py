"""Changes to a GGUF file for the tests: other bytes in a tensor, tensors dropped or taken from another file,
another number in a field.

The metadata is kept byte for byte, so that a vocabulary of 152k tokens need not be written again.
"""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.gguf.header import read_header
from pipeline.gguf.tensors import Bytes, GgufTensor, gguf_tensors

# name: (shape, fastest dimension first; type number; data)
Tensors = dict[str, tuple[tuple[int, ...], int, bytes]]


def change_rows(path: Path, tensor: str, change: Callable[[Bytes], Bytes]) -> None:
    """Replace a tensor's stored rows, (rows, bytes of a row), by what `change` makes of them, in place."""
    found = gguf_tensors(path)[1][tensor]
    changed = np.ascontiguousarray(change(found.stored(0, found.rows)))
    assert changed.shape == (found.rows, found.row_bytes)
    with path.open("r+b") as file:
        file.seek(found.start)
        file.write(changed.tobytes())


def change_tensors(path: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Write the file again with the tensors that `change` makes of its own."""
    data = path.read_bytes()
    tensors = gguf_tensors(path)[1]
    name, first = next(iter(tensors.items()))
    metadata = data[24 : data.index(struct.pack("<Q", len(name)) + _entry(name, *_described(first)))]
    ours = change(
        {
            name: (*_described(tensor), tensor.stored(0, tensor.rows).tobytes())
            for name, tensor in tensors.items()
        }
    )
    entries, blob = b"", b""
    for name, (shape, ggml_type, content) in ours.items():
        entries += (
            struct.pack("<Q", len(name)) + _entry(name, shape, ggml_type) + struct.pack("<Q", len(blob))
        )
        blob += content + b"\0" * (-len(content) % 32)
    head = data[:8] + struct.pack("<Q", len(ours)) + data[16:24] + metadata + entries
    path.write_bytes(head + b"\0" * (-len(head) % 32) + blob)


def in_rows(tensor: str, change: Callable[[Bytes], Bytes]) -> Callable[[Path], None]:
    """`change_rows` of a file that is given later."""
    return lambda path: change_rows(path, tensor, change)


def in_tensors(change: Callable[[Tensors], Tensors]) -> Callable[[Path], None]:
    """`change_tensors` of a file that is given later."""
    return lambda path: change_tensors(path, change)


def change_type(path: Path, tensor: str, number: int) -> None:
    """Another type number in a tensor's entry, in place; its bytes stay."""
    shape, kind = _described(gguf_tensors(path)[1][tensor])
    head = struct.pack("<Q", len(tensor))
    data = path.read_bytes()
    changed = data.replace(head + _entry(tensor, shape, kind), head + _entry(tensor, shape, number))
    assert changed != data
    path.write_bytes(changed)


def change_fields(path: Path, fields: dict[str, Any]) -> None:
    """Write the file again with these values (texts, numbers, lists of either) in its metadata, in the place
    of its own where it has them.
    """
    data, header = path.read_bytes(), read_header(path)
    ours = {name: data[slice(*span)] for name, span in header.spans.items()}
    behind = max(end for _, end in header.spans.values())
    for name, value in fields.items():
        kind, stored = _value(value)
        ours[name] = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + stored
    head = data[:16] + struct.pack("<Q", len(ours)) + b"".join(ours.values()) + data[behind : header.end]
    path.write_bytes(head + b"\0" * (-len(head) % header.alignment) + data[header.start :])


def _value(value: Any) -> tuple[int, bytes]:
    """GGUF's number for a value's type, and the value's bytes; whole numbers are uint32, in a list int32."""
    if isinstance(value, list):
        kind = 8 if isinstance(value[0], str) else 5
        items = [_value(item)[1] if kind == 8 else struct.pack("<i", item) for item in value]
        return 9, struct.pack("<IQ", kind, len(items)) + b"".join(items)
    if isinstance(value, str):
        return 8, struct.pack("<Q", len(value.encode())) + value.encode()
    kind, letter = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}[type(value)]
    return kind, struct.pack(f"<{letter}", value)


def light_copy(source: Path, target: Path, *dropped: str) -> Path:
    """The GGUF's architecture, settings, file type and tensors but `dropped`, no vocabulary; `target`."""
    header, tensors = gguf_tensors(source)
    kept = ("general.architecture", "general.file_type", f"{header.fields['general.architecture']}.")
    rows = {
        name: (tensor.stored(0, tensor.rows).reshape(*tensor.shape[:-1], -1), tensor.ggml_type)
        for name, tensor in tensors.items()
        if name not in dropped
    }
    return write_gguf(
        target, rows, {name: value for name, value in header.fields.items() if name.startswith(kept)}
    )


def write_gguf(path: Path, tensors: dict[str, tuple[Any, int]], fields: dict[str, Any] | None = None) -> Path:
    """A GGUF with these tensors (stored rows or numbers, ggml's number of the type), of a Llama unless
    `fields`, as `change_fields` takes them, say otherwise; `path`.
    """
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    for name, (rows, number) in tensors.items():
        kind = gguf.GGMLQuantizationType(number)
        stored = rows if rows.dtype == np.uint8 else gguf.quants.quantize(rows, kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    change_fields(path, fields or {})
    return path


def _described(tensor: GgufTensor) -> tuple[tuple[int, ...], int]:
    return tuple(reversed(tensor.shape)), tensor.ggml_type


def _entry(name: str, shape: tuple[int, ...], ggml_type: int) -> bytes:
    return name.encode() + struct.pack(f"<I{len(shape)}QI", len(shape), *shape, ggml_type)


def without(*names: str) -> Callable[[Tensors], Tensors]:
    """For `change_tensors`: all but these."""
    return lambda tensors: {name: one for name, one in tensors.items() if name not in names}


def both_ends_swapped(rows: Any) -> Any:
    """For `change_rows`: the first and the last row change places."""
    return np.concatenate([rows[-1:], rows[1:-1], rows[:1]])


# --- odd metadata -------------------------------------------------------------------------------------------

UINT32, INT32, FLOAT32, BOOL, TEXT, LIST, UINT64 = 4, 5, 6, 7, 8, 9, 10  # GGUF's types of values
PACKED = {UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?", UINT64: "<Q"}
Value = tuple[int, Any]  # type and value; of a list, the type of its elements is the first of a pair

# what stands in any field's place
ODD: dict[str, Value | None] = {
    "left out": None,
    "0": (UINT32, 0),
    "-1": (INT32, -1),
    "huge": (UINT64, 2**63),
    "true": (BOOL, True),
    "NaN": (FLOAT32, float("nan")),
    "infinite": (FLOAT32, float("inf")),
    "a text": (TEXT, "odd"),
    "no text": (TEXT, ""),
    "an empty list": (LIST, (UINT32, [])),
    "numbers": (LIST, (UINT32, [7, 7, 7])),
    "texts": (LIST, (TEXT, ["a", ""])),
}

# what else a field may hold, by its name
MORE: dict[str, dict[str, Value | None]] = {
    "tokenizer.ggml.token_type": {
        "too few": (LIST, (INT32, [1] * 3)),
        "beyond the last": (LIST, (INT32, [99] * 261)),
        "negative": (LIST, (INT32, [-1] * 261)),
        "not whole": (LIST, (FLOAT32, [1.0] * 261)),
        "all control": (LIST, (INT32, [3] * 261)),
        "all bytes": (LIST, (INT32, [6] * 261)),
    },
    "tokenizer.ggml.tokens": {
        "all one": (LIST, (TEXT, ["a"] * 261)),
        "too few": (LIST, (TEXT, [str(number) for number in range(100)])),
        "too many": (LIST, (TEXT, [str(number) for number in range(400)])),
    },
    "tokenizer.ggml.merges": {
        "no pair": (LIST, (TEXT, ["ab"])),
        "three": (LIST, (TEXT, ["h e l"])),
        "unknown": (LIST, (TEXT, ["zz qq"])),
    },
    "tokenizer.ggml.scores": {"NaN": (LIST, (FLOAT32, [float("nan")] * 261)), "text": (TEXT, "x")},
    "tokenizer.ggml.model": {name: (TEXT, name) for name in ("llama", "bert", "t5")},
    "tokenizer.ggml.pre": {name: (TEXT, name) for name in ("qwen2", "llama-bpe")},
    "general.architecture": {name: (TEXT, name) for name in ("qwen2", "falcon", "a.b", "l")},
    "llama.block_count": {"9": (UINT32, 9)},
    "llama.attention.head_count": {"3": (UINT32, 3), "64": (UINT32, 64)},
    "llama.attention.head_count_kv": {"3": (UINT32, 3), "8": (UINT32, 8)},
    "llama.embedding_length": {"31": (UINT32, 31), "64": (UINT32, 64)},
    "llama.rope.dimension_count": {"7": (UINT32, 7), "64": (UINT32, 64)},
    "llama.rope.freq_base": {"0.0": (FLOAT32, 0.0), "negative": (FLOAT32, -1.0)},
    "llama.attention.layer_norm_rms_epsilon": {"0.0": (FLOAT32, 0.0), "negative": (FLOAT32, -1.0)},
    "llama.vocab_size": {"260": (UINT32, 260), "100,000": (UINT32, 100_000)},
} | {
    f"tokenizer.ggml.{name}_token_id": {"behind the last": (UINT32, 261), "none": (UINT32, 2**32 - 1)}
    for name in ("bos", "eos", "unknown", "padding")
}
FURTHER = (
    "general.alignment",
    "general.file_type",
    "split.count",
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.eot_token_id",
    *(
        f"llama.{name}"
        for name in (
            "attention.key_length",
            "attention.sliding_window",
            "attention.value_length",
            "expert_count",
            "expert_used_count",
            "rope.scale_linear",
            "rope.scaling.factor",
            "rope.scaling.type",
        )
    ),
)  # fields that `tiny.tiny_gguf` doesn't write


def odd_variants(source: Path) -> Iterator[tuple[str, Value | None]]:
    """(field, what stands in its place) for each field of the GGUF and some further ones: of another type,
    empty, out of range, left out.
    """
    fields = dict.fromkeys([*gguf_tensors(source)[0].fields, *FURTHER])
    for field in fields:
        yield from ((field, value) for value in (ODD | MORE.get(field, {})).values())


def change_field(source: Path, target: Path, field: str, value: Value | None) -> Path:
    """A copy of a GGUF with a metadata field changed, added or (None) left out; `target`."""
    data, header = source.read_bytes(), gguf_tensors(source)[0]
    spans = {name: data[slice(*span)] for name, span in header.spans.items() if name != field}
    if value:
        spans[field] = _text(field) + struct.pack("<I", value[0]) + _packed(*value)
    entries = max((24, *(stop for _, stop in header.spans.values())))
    head = data[:16] + struct.pack("<Q", len(spans)) + b"".join(spans.values()) + data[entries : header.end]
    target.write_bytes(head + b"\0" * (-len(head) % 32) + data[header.start :])
    return target


def _packed(kind: int, value: Any) -> bytes:
    if kind == TEXT:
        return _text(value)
    if kind == LIST:
        element, values = value
        return struct.pack("<IQ", element, len(values)) + b"".join(_packed(element, one) for one in values)
    return struct.pack(PACKED[kind], value)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()
