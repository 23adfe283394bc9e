"""Read and write safetensors files in row blocks, so that memory contains a block of a tensor, never a model.

Format: github.com/huggingface/safetensors, README: 8 bytes header length (little endian), JSON header, then
the tensors' bytes without holes. The package safetensors checks a header. It maps the tensors, and mapped
pages count as the process's own memory, so they are read and written here, with plain reads and writes.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.core.errors import DataError
from pipeline.core.jsonl import parse_object
from pipeline.core.special_files import need_file

INDEX = "model.safetensors.index.json"
# {the format's name of a type: (bytes of a number, torch's name)}
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
    """Tensor of a file: `start` is its first byte's place in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int

    @property
    def rows(self) -> int:
        """Rows if all but the last dimension are flattened; a vector has one number a row."""
        return prod(self.shape[:-1]) if len(self.shape) > 1 else prod(self.shape)

    @property
    def columns(self) -> int:
        """Numbers in a row."""
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
    """Return rows [first, last) of a tensor as a torch tensor (rows, columns) of its own type."""
    import torch

    last = entry.rows if last is None else last
    rows: Any = torch.empty(last - first, entry.columns, dtype=getattr(torch, DTYPES[entry.dtype][1]))
    with entry.file.open("rb") as file:
        file.seek(entry.start + first * entry.columns * entry.width)
        if file.readinto(rows.view(-1).view(torch.uint8).numpy()) < rows.nbytes:
            raise DataError("Q-GGUF-006", f"{entry.file} ended while it was read: {REMEDY}")
    return rows


def spans(entry: Entry, numbers: int, together: int = 1) -> Iterator[tuple[int, int]]:
    """Yield (first, last) row of ranges of about `numbers` numbers that cover a tensor. The number of their
    rows is a multiple of `together`, except for the last.
    """
    step = max(1, numbers // max(entry.columns, 1) // together) * together
    return ((first, min(first + step, entry.rows)) for first in range(0, entry.rows, step))


def same_values(entry: Entry, other: Entry) -> bool:
    """Return True if two tensors have equal shapes and numbers, whatever their types; NaN equals nothing."""
    return entry.shape == other.shape and all(
        bool((read_rows(entry, *span) == read_rows(other, *span)).all()) for span in spans(entry, 1 << 22)
    )


def read_folder(folder: Path) -> dict[str, Entry]:
    """Return all tensors of a model's folder, shard by shard in the files' order. Raises `DataError` if a
    file is incomplete or contradicts the index.
    """
    index = _read_index(folder)
    single = folder / "model.safetensors"
    files = sorted({folder / name for name in index.values()}) or (
        [single] if single.exists() else sorted(folder.glob("*.safetensors"))
    )
    if not files:
        raise DataError("Q-GGUF-007", f"{folder} holds no safetensors file: {REMEDY}")
    entries: dict[str, Entry] = {}
    for file in files:
        if not file.is_file():
            raise DataError("Q-GGUF-007", f"{folder / INDEX} names {file.name}, which is missing: {REMEDY}")
        for entry in read_header(file):
            if entry.name in entries:
                raise DataError(
                    "Q-GGUF-008",
                    f"{entry.name} is in {entries[entry.name].file.name} and in {file.name}: keep one of the "
                    "two",
                )
            entries[entry.name] = entry
    wrong = [
        name
        for name in index.keys() | entries.keys()
        if index and (name not in entries or index.get(name) != entries[name].file.name)
    ]
    if wrong:
        raise DataError(
            "Q-GGUF-007",
            f"{folder / INDEX} does not say where {min(wrong)} is ({len(wrong)} tensors): {REMEDY}",
        )
    return entries


def _read_index(folder: Path) -> dict[str, str]:
    if not (folder / INDEX).exists():
        return {}
    need_file(folder / INDEX)
    # The error is raised below.
    with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        weights: dict[str, str] = json.loads((folder / INDEX).read_bytes())["weight_map"]
        if all("/" not in name for name in weights.values()):
            return weights
    raise DataError("Q-GGUF-007", f"{folder / INDEX} is not an index of shards: {REMEDY}")


def read_header(file: Path) -> list[Entry]:
    """Return a file's tensors in byte order.

    Raises `DataError` unless the header describes the file exactly.
    """
    from safetensors import SafetensorError, safe_open

    need_file(file)
    try:
        with safe_open(file, framework="np"), file.open("rb") as opened:
            start = 8 + int.from_bytes(opened.read(8), "little")
            header = parse_object(opened.read(start - 8))
    except (SafetensorError, ValueError) as error:
        raise DataError("Q-GGUF-006", f"{file} can't be read as safetensors ({error}): {REMEDY}") from None
    header.pop("__metadata__", None)
    odd = next((name for name, details in header.items() if details["dtype"] not in DTYPES), None)
    if odd:
        raise DataError(
            "Q-GGUF-009",
            f"{odd} in {file} has the type {header[odd]['dtype']}, which can't be merged: take a base in 16 "
            "or 32 bit",
        )
    entries = [
        Entry(name, details["dtype"], tuple(details["shape"]), file, start + details["data_offsets"][0])
        for name, details in header.items()
    ]
    return sorted(entries, key=lambda entry: (entry.start, entry.nbytes))


def append_rows(file: BinaryIO, rows: Any) -> None:
    """Write the bytes of a torch tensor to a file of `writing_shard`."""
    import torch

    file.write(rows.contiguous().view(-1).view(torch.uint8).numpy())


@contextmanager
def writing_shard(file: Path, tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> Iterator[BinaryIO]:
    """Yield a file with the header of `tensors` (name, type, shape), to be filled in order by `append_rows`.

    Raises `AssertionError` if too much or too little came.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape in tensors:
        first = end
        end += prod(shape) * DTYPES[dtype][0]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [first, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # The first tensor starts at a multiple of 8.
    with file.open("wb") as opened:
        opened.write(struct.pack("<Q", len(text)) + text)
        yield opened
        if opened.tell() != 8 + len(text) + end:
            raise AssertionError(
                f"{file} got {opened.tell() - 8 - len(text)} bytes of tensors where its header says {end}"
            )
