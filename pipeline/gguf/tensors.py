"""Read the tensors of a GGUF in blocks of rows, as stored and as float32. Only one block is in memory."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import dropwhile
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.ggml_types import TYPES
from pipeline.core.errors import DataError
from pipeline.gguf.file import check_gguf
from pipeline.gguf.header import Header, tensor_bytes

BLOCK = 1 << 16  # Weights that are read at a time: 256 kB as float32, which stay in a core's cache.
Floats = np.ndarray[Any, np.dtype[np.float32]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
# {ggml's number: first byte of each float16 scale or minimum in a block}
SCALES = {kind.number: kind.scales for kind in TYPES.values() if kind.scales}
# {ggml's name: noise}, for types that were measured
NOISE = {name: kind.noise for name, kind in TYPES.items() if kind.noise is not None}
WORST_WEIGHT = {name: kind.worst for name, kind in TYPES.items() if kind.worst is not None}


@dataclass(frozen=True)
class GgufTensor:
    """Tensor of a GGUF file: its first byte is at `start`; the last dimension of `shape` runs along a row.

    Leading dimensions of 1 are left out: llama.cpp's tools keep them or drop them.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    file: Path
    start: int

    @property
    def columns(self) -> int:
        """Weights in a row; a vector is one row."""
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        """Rows if all dimensions but the last are flattened."""
        return math.prod(self.shape) // self.columns if self.columns else 0

    @property
    def type(self) -> str:
        """ggml's name of the type: F16, Q4_K …"""
        from gguf import GGMLQuantizationType

        return str(GGMLQuantizationType(self.ggml_type).name)

    @property
    def block(self) -> int:
        """Number of weights that are quantized together; for floats, a row."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        size = int(GGML_QUANT_SIZES[GGMLQuantizationType(self.ggml_type)][0])
        return size if size > 1 else self.columns

    @property
    def readable(self) -> bool:
        """True if the package gguf can dequantize the type."""
        try:
            self.values(0, 1)
        except DataError:
            return False
        return True

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as stored."""
        return tensor_bytes(self.name, (self.columns,), self.ggml_type)

    def part(self, number: int) -> "GgufTensor":
        """Return one of the matrices of a tensor of three dimensions, an expert's."""
        shape = self.shape[1:]
        return replace(self, shape=shape, start=self.start + number * shape[0] * self.row_bytes)

    def stored(self, first: int, last: int) -> Bytes:
        """Return rows [first, last) as their bytes, (last − first, row_bytes)."""
        count = (last - first) * self.row_bytes
        values = np.fromfile(self.file, np.uint8, count, offset=self.start + first * self.row_bytes)
        if len(values) < count:
            raise DataError(
                "Q-GGUF-003",
                f"{self.file} ended while {self.name} was read: run the stage that makes it again",
            )
        return values.reshape(last - first, self.row_bytes)

    def values(self, first: int, last: int) -> Floats:
        """Return rows [first, last) as float32, (last − first, columns), by the package gguf's dequantizer.

        Raises `DataError` for a type that it can't dequantize.
        """
        from gguf import GGMLQuantizationType, dequantize

        stored = self.stored(first, last)
        # They are read as one long row: the package computes 16 rows at a time, which is slow for short ones.
        try:
            flat: Floats = dequantize(stored.reshape(1, -1), GGMLQuantizationType(self.ggml_type))
        except NotImplementedError as error:
            raise DataError(
                "Q-GGUF-005",
                f"{self.name} of {self.file} is {self.type}, which can't be read back: take another level",
            ) from error
        return flat.reshape(last - first, self.columns)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield (first, last) row of blocks of about `BLOCK` weights that cover the tensor."""
        step = max(1, BLOCK // max(self.columns, 1))
        return ((first, min(first + step, self.rows)) for first in range(0, self.rows, step))


def gguf_tensors(path: Path) -> tuple[Header, dict[str, GgufTensor]]:
    """Return (header, {name: tensor}) of a GGUF. Raises `DataError` if it is incomplete, or its tensors don't
    follow each other in the header's order, each padded to the alignment: llama.cpp loads no such file.
    """
    header = check_gguf(path)
    tensors = {}
    end = 0
    for name, (shape, ggml_type) in header.tensors.items():
        if header.offsets[name] != end:
            raise DataError(
                "Q-GGUF-003",
                f"{path} doesn't hold its tensors one after the other: run the stage that makes it again",
            )
        dimensions = tuple(dropwhile(lambda size: size == 1, reversed(shape)))
        tensors[name] = GgufTensor(name, dimensions, ggml_type, path, header.start + end)
        end += -(-tensor_bytes(name, shape, ggml_type) // header.alignment) * header.alignment
    return header, tensors
