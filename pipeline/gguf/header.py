"""Read the header of a GGUF file strictly: metadata, tensor names, shapes and types.

Reading stops at the first count that the file's own size rules out. The reader of the `gguf` package trusts
such counts and can loop for hours on a file of 43 bytes. So a foreign file is read with this one first.
"""

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.special_files import need_file

# The largest vocabularies in use need 15 MB. As Python numbers, 64 MB of bytes take 1 GB.
MAX_HEADER_BYTES = 64 << 20
# GGUF value types (ggml/docs/gguf.md): struct format by number; 8 is a string, 9 an array
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# {key of a config.json: field with its value, after the architecture's name}
CONFIG_FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
}
USUAL_ROPE_BASE = 10_000.0  # llama.cpp's value if a header has no rope.freq_base
LOCAL_ROPE_BASE = "rope.freq_base_swa"  # base of layers with a window, if they have their own
# Field, after the architecture's name, with the context that a model was first trained with.
FIRST_CONTEXT = "rope.scaling.original_context_length"
# Tensors with listed rotary factors, for contexts beyond the original one and for others.
LONG_FACTORS = "rope_factors_long.weight"
SHORT_FACTORS = "rope_factors_short.weight"
DRAFT_LAYERS = "nextn_predict_layers"  # number of layers for drafting (MTP) after the model's own


class NotGguf(ValueError):
    """Error for bytes that are not a complete GGUF file; the text names the place of the fault."""


class UnknownType(NotGguf):
    """Error for a tensor type that the package gguf doesn't know, so that the tensor's end is unknown."""


@dataclass(frozen=True)
class Header:
    """Header of a GGUF: its metadata, and per tensor (shape, fastest dimension first; ggml type number).

    A tensor's first byte is at `start` + its entry in `offsets`; both are multiples of `alignment`.
    """

    fields: dict[str, Any]
    tensors: dict[str, tuple[tuple[int, ...], int]]
    offsets: dict[str, int] = field(default_factory=dict)
    start: int = 0
    alignment: int = 32
    # First byte of each field and the one after it; the byte after the list of tensors.
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    end: int = 0

    @property
    def drafting(self) -> tuple[str, ...]:
        """Prefixes of the names of the tensors of layers for drafting (MTP), which are the last ones."""
        architecture = self.fields.get("general.architecture")
        layers = self.fields.get(f"{architecture}.{CONFIG_FIELDS['num_hidden_layers']}")
        count = self.fields.get(f"{architecture}.{DRAFT_LAYERS}")
        if not isinstance(layers, int) or not isinstance(count, int):
            return ()
        return tuple(f"blk.{number}." for number in range(layers - min(count, layers), layers))

    @property
    def parameters(self) -> int:
        """Number of weights in all tensors."""
        return sum(math.prod(shape) for shape, _ in self.tensors.values())


class _Cursor:
    """Reader of little-endian values from bytes that never reads past their end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def scalars(self, format: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{format}") * count
        if size > len(self.data) - self.at:
            raise NotGguf(f"{count:,} values are announced at byte {self.at:,}, more than the file holds")
        values = struct.unpack_from(f"<{count}{format}", self.data, self.at)
        self.at += size
        return values

    def value(self, value_type: int) -> Any:
        if value_type in SCALARS:
            return self.scalars(SCALARS[value_type], 1)[0]
        if value_type == STRING:
            return self.texts(1)[0]
        if value_type != ARRAY:
            raise NotGguf(f"value type {value_type} at byte {self.at:,} is not one that llama.cpp writes")
        element = self.scalars("I", 1)[0]
        count = self.scalars("Q", 1)[0]
        if element in SCALARS:
            return list(self.scalars(SCALARS[element], count))
        if element != STRING:
            raise NotGguf(f"value type {element} at byte {self.at:,} is not one that llama.cpp writes")
        return self.texts(count)

    def texts(self, count: int) -> list[str]:
        """Return `count` texts, each stored after its length. The loop calls no function, because vocabulary
        and merges are 300,000 texts.
        """
        if count * 8 > len(self.data) - self.at:
            raise NotGguf(f"{count:,} texts are announced at byte {self.at:,}, more than the file holds")
        data = self.data
        at = self.at
        end = len(self.data)
        length = struct.Struct("<Q").unpack_from
        texts = []
        for _ in range(count):
            start = at + 8
            stop = start + length(data, at)[0] if start <= end else end + 1
            if stop > end:
                raise NotGguf(f"a text at byte {at:,} would end after the file")
            texts.append(data[start:stop].decode("utf-8", errors="replace"))
            at = stop
        self.at = at
        return texts


def read_header(file: Path) -> Header:
    """Return a GGUF's header (version 2 or 3, little-endian) in time and memory bounded by the file's size.

    Also proves that the file contains every tensor it lists. Raises `NotGguf`, and `DataError` for a named
    pipe or a device, unopened.
    """
    need_file(file)
    with file.open("rb") as stream:
        cursor = _Cursor(stream.read(MAX_HEADER_BYTES))
    if cursor.data[:4] != b"GGUF":
        raise NotGguf("it does not start with the letters GGUF")
    cursor.at = 4
    (version,) = cursor.scalars("I", 1)
    tensor_count, field_count = cursor.scalars("Q", 2)
    if version not in (2, 3):
        raise NotGguf(f"it has GGUF version {version}; versions 2 and 3 are known")
    fields: dict[str, Any] = {}
    spans: dict[str, tuple[int, int]] = {}
    for _ in range(field_count):  # It stops with the bytes, because a field takes at least 13.
        first = cursor.at
        name = cursor.texts(1)[0]
        if name in fields:
            raise NotGguf(f"field {name} is written twice")
        fields[name] = cursor.value(cursor.scalars("I", 1)[0])
        spans[name] = (first, cursor.at)
    tensors: dict[str, tuple[tuple[int, ...], int]] = {}
    offsets: dict[str, int] = {}
    end = 0
    for _ in range(tensor_count):
        name = cursor.texts(1)[0]
        (dimensions,) = cursor.scalars("I", 1)
        if dimensions > 4 or name in tensors:
            raise NotGguf(f"tensor {name} has {dimensions} dimensions or is written twice")
        shape = cursor.scalars("Q", dimensions)
        (ggml_type,) = cursor.scalars("I", 1)
        (offsets[name],) = cursor.scalars("Q", 1)
        tensors[name] = (shape, ggml_type)
        end = max(end, offsets[name] + tensor_bytes(name, shape, ggml_type))
    alignment = fields.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment.bit_count() > 1:
        raise NotGguf(f"general.alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    size = file.stat().st_size
    if tensors and start + end > size:
        raise NotGguf(f"its tensors end at byte {start + end:,}, the file at {size:,}: it is cut off")
    return Header(fields, tensors, offsets, start, alignment, spans, cursor.at)


def tensor_bytes(name: str, shape: tuple[int, ...], ggml_type: int) -> int:
    """Return the bytes of a tensor of this shape and ggml type. Raises `UnknownType`."""
    from gguf import GGML_QUANT_SIZES

    if ggml_type not in GGML_QUANT_SIZES:
        raise UnknownType(f"tensor {name} has type number {ggml_type}, which is not known")
    block, block_bytes = GGML_QUANT_SIZES[ggml_type]
    return -(-math.prod(shape) // int(block)) * int(block_bytes)
