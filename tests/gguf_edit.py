"""Changes to a GGUF file for the tests: other bytes in a tensor, tensors dropped or taken from another file,
another number in a field.

The metadata is kept byte for byte, so that a vocabulary of 152k tokens need not be written again.
"""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

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


def change_number(path: Path, field: str, value: int) -> None:
    """Another number in a field of type uint32, in place."""
    data = bytearray(path.read_bytes())
    at = (
        data.index(struct.pack("<Q", len(field)) + field.encode() + struct.pack("<I", 4)) + 8 + len(field) + 4
    )
    data[at : at + 4] = struct.pack("<I", value)
    path.write_bytes(data)


def add_texts(path: Path, fields: dict[str, str]) -> None:
    """Write the file again with further metadata fields behind its own."""
    data, (header, tensors) = path.read_bytes(), gguf_tensors(path)
    name, first = next(iter(tensors.items()))
    entries = data.index(struct.pack("<Q", len(name)) + _entry(name, *_described(first)))
    added = b"".join(
        struct.pack("<Q", len(key)) + key.encode() + struct.pack("<IQ", 8, len(text)) + text.encode()
        for key, text in fields.items()
    )
    count = struct.pack("<Q", struct.unpack("<Q", data[16:24])[0] + len(fields))
    end = entries + sum(len(key.encode()) + 24 + 8 * len(shape) for key, (shape, _) in header.tensors.items())
    head = data[:16] + count + data[24:entries] + added + data[entries:end]
    path.write_bytes(head + b"\0" * (-len(head) % header.alignment) + data[header.start :])


def light_copy(source: Path, target: Path, *dropped: str) -> Path:
    """A GGUF of the same architecture, file type and tensors, but for those dropped, without a vocabulary;
    `target`.
    """
    import gguf

    header, tensors = gguf_tensors(source)
    writer = gguf.GGUFWriter(target, header.fields["general.architecture"])
    writer.add_file_type(header.fields["general.file_type"])
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
