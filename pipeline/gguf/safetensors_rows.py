"""Safetensors files read and written in row blocks, so that memory holds a block of a tensor, never a model.

Format: github.com/huggingface/safetensors, README: 8 bytes header length (little endian), JSON header, then
the tensors' bytes without holes.
Plain reads, not `mmap`: mapped pages count as the process's own memory.
"""

import json
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

from pipeline.core.errors import DataError

INDEX = "model.safetensors.index.json"
HEADER_LIMIT = 100_000_000  # the format's own limit, in bytes
# the format's names of types: bytes of a number and torch's name
DTYPES = {
    "BOOL": (1, "bool"),
    "U8": (1, "uint8"),
    "I8": (1, "int8"),
    "F8_E4M3": (1, "float8_e4m3fn"),
    "F8_E5M2": (1, "float8_e5m2"),
    "U16": (2, "uint16"),
    "I16": (2, "int16"),
    "F16": (2, "float16"),
    "BF16": (2, "bfloat16"),
    "U32": (4, "uint32"),
    "I32": (4, "int32"),
    "F32": (4, "float32"),
    "U64": (8, "uint64"),
    "I64": (8, "int64"),
    "F64": (8, "float64"),
}
NAMES = {name: key for key, (_, name) in DTYPES.items()}
REMEDY = "download or build it again"


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: `start` is its first byte's place in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int

    @property
    def rows(self) -> int:
        """Rows where all but the last dimension are flattened; a vector has one number a row."""
        return prod(self.shape[:-1]) if len(self.shape) > 1 else prod(self.shape)

    @property
    def columns(self) -> int:
        """Numbers of a row."""
        return self.shape[-1] if len(self.shape) > 1 else 1

    @property
    def width(self) -> int:
        """Bytes of a number."""
        return DTYPES[self.dtype][0]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * self.width


def read_rows(entry: Entry, first: int = 0, last: int | None = None) -> Any:
    """Rows [first, last) of a tensor as a torch tensor (rows, columns) of its own type."""
    import torch

    last = entry.rows if last is None else last
    size, name = DTYPES[entry.dtype]
    width = entry.columns * size
    buffer = torch.empty((last - first) * width, dtype=torch.uint8)
    with entry.file.open("rb", buffering=0) as file:
        fill(file, buffer, entry.start + first * width)
    return buffer.view(getattr(torch, name)).view(last - first, entry.columns)


def fill(file: Any, buffer: Any, start: int) -> None:
    """Read `buffer` (uint8 tensor) full from byte `start`; one read stops at 2 GiB, so there may be
    several.
    """
    view, at = memoryview(buffer.numpy()), 0
    while at < len(view):
        count = os.preadv(file.fileno(), [view[at:]], start + at)
        if not count:
            raise DataError("Q-GGUF-006", f"{file.name} ended while it was read: {REMEDY}")
        at += count


def read_folder(folder: Path) -> dict[str, Entry]:
    """All tensors of a model's folder, shard by shard in the files' order. Raises `DataError` if a file is
    not whole or contradicts the index.
    """
    index = _read_index(folder)
    single = folder / "model.safetensors"
    files = sorted({folder / name for name in index.values()}) or (
        [single] if single.exists() else sorted(folder.glob("*.safetensors"))
    )
    if not files:
        raise DataError("Q-GGUF-007", f"{folder} holds no safetensors file: {REMEDY}")
    found: dict[str, Entry] = {}
    for file in files:
        if not file.is_file():
            raise DataError("Q-GGUF-007", f"{folder / INDEX} names {file.name}, which is missing: {REMEDY}")
        for entry in read_header(file):
            if entry.name in found:
                raise DataError(
                    "Q-GGUF-008",
                    f"{entry.name} is in {found[entry.name].file.name} and in {file.name}: keep one of the "
                    "two",
                )
            found[entry.name] = entry
    wrong = [
        name
        for name in index.keys() | found.keys()
        if index and (name not in found or index.get(name) != found[name].file.name)
    ]
    if wrong:
        raise DataError(
            "Q-GGUF-007",
            f"{folder / INDEX} does not say where {min(wrong)} is ({len(wrong)} tensors so): {REMEDY}",
        )
    return found


def _read_index(folder: Path) -> dict[str, str]:
    if not (folder / INDEX).exists():
        return {}
    try:
        weights: dict[str, str] = _unique_json((folder / INDEX).read_bytes())["weight_map"]
        if all("/" not in name for name in weights.values()):
            return weights
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # said below
    raise DataError("Q-GGUF-007", f"{folder / INDEX} is no index of shards: {REMEDY}")


def read_header(file: Path) -> list[Entry]:
    """The tensors of one file in the order of their bytes. Raises `DataError` unless the header describes the
    file exactly.
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else HEADER_LIMIT
        if length > min(size - 8, HEADER_LIMIT):
            raise DataError("Q-GGUF-006", f"{file} is cut or no safetensors file: {REMEDY}")
        try:
            header = _unique_json(opened.read(length))
            header.pop("__metadata__", None)
            described = [_described(name, one) for name, one in header.items()]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                "Q-GGUF-006", f"{file} has a header that can't be read ({error}): {REMEDY}"
            ) from None
    end, entries = 0, []
    for name, dtype, shape, first, last in sorted(described, key=lambda one: (one[3], one[4])):
        if dtype not in DTYPES:
            raise DataError(
                "Q-GGUF-009",
                f"{name} in {file} has the type {dtype}, which can't be merged: take a base in 16 or 32 bit",
            )
        if first != end or min(shape, default=0) < 0 or last - first != prod(shape) * DTYPES[dtype][0]:
            raise DataError(
                "Q-GGUF-006",
                f"{name} in {file} lies at bytes {first} to {last}, which its shape or its neighbors "
                f"contradict: {REMEDY}",
            )
        entries.append(Entry(name, dtype, shape, file, 8 + length + first))
        end = last
    if 8 + length + end != size:
        raise DataError(
            "Q-GGUF-006", f"{file} has {size} bytes and its header describes {8 + length + end}: {REMEDY}"
        )
    return entries


def _described(name: str, one: dict[str, Any]) -> tuple[str, str, tuple[int, ...], int, int]:
    first, last = one["data_offsets"]
    return name, str(one["dtype"]), tuple(map(int, one["shape"])), int(first), int(last)


def _unique_json(text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(pairs) != len(dict(pairs)):
            raise ValueError("a name occurs twice")
        return dict(pairs)

    value: dict[str, Any] = json.loads(text, object_pairs_hook=unique)
    return value


class Shard:
    """A file being written: its tensors' bytes must be given in the order of its header."""

    def __init__(self, file: FileIO) -> None:
        self.file = file

    def write(self, rows: Any) -> None:
        """Append the bytes of a contiguous torch tensor."""
        import torch

        left = memoryview(rows.contiguous().view(-1).view(torch.uint8).numpy())
        while left:
            left = left[self.file.write(left) :]  # one write stops at 2 GiB


@contextmanager
def writing_shard(file: Path, tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> Iterator[Shard]:
    """A file with the header of `tensors` (name, type, shape), to be filled in that order; an
    `AssertionError` if too much or too little came.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape in tensors:
        first, end = end, end + prod(shape) * DTYPES[dtype][0]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [first, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that the first tensor starts at a multiple of 8
    with file.open("wb", buffering=0) as opened:
        opened.write(struct.pack("<Q", len(text)) + text)
        yield Shard(opened)
        if opened.tell() != 8 + len(text) + end:
            raise AssertionError(
                f"{file} got {opened.tell() - 8 - len(text)} bytes of tensors where its header says {end}"
            )
