"""Changes to a GGUF file for the tests: other bytes in a tensor, tensors dropped or taken from another file,
another number in a field.

The metadata is kept byte for byte, so that a vocabulary of 152k tokens need not be written again.
"""

import struct
from collections.abc import Callable
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
    """A GGUF of the same architecture, settings, file type and tensors, but for those dropped, without a
    vocabulary; `target`.
    """
    import gguf

    header, tensors = gguf_tensors(source)
    architecture = header.fields["general.architecture"]
    writer = gguf.GGUFWriter(target, architecture)
    writer.add_file_type(header.fields["general.file_type"])
    for name, value in header.fields.items():
        if name.startswith(f"{architecture}."):
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(name, value)
    for name, tensor in tensors.items():
        if name not in dropped:
            stored = tensor.stored(0, tensor.rows).reshape(*tensor.shape[:-1], -1)
            writer.add_tensor(name, stored, raw_dtype=gguf.GGMLQuantizationType(tensor.ggml_type))
    finish(writer)
    return target


def finish(writer: Any) -> None:
    """Write a `gguf.GGUFWriter`'s file and close it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
