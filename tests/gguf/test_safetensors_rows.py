"""Safetensors in row blocks: what safetensors writes is read, what is written safetensors reads, and nothing
that is not whole is taken.
"""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from pipeline.core.errors import DataError
from pipeline.gguf.safetensors_rows import (
    INDEX,
    NAMES,
    append_rows,
    read_folder,
    read_header,
    read_rows,
    writing_shard,
)

KINDS = ("float32", "float16", "bfloat16", "int64", "uint8", "bool")


def tensors(shapes: list[tuple[int, ...]], seed: int = 0) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {
        f"t{n}": (torch.randn(shape, generator=random) * 9).to(getattr(torch, KINDS[n % len(KINDS)]))
        for n, shape in enumerate(shapes)
    }


@settings(max_examples=draws(40))
@given(
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=7),
    cut=st.floats(0, 1),
)
def test_any_file_is_read_and_written_as_safetensors_does(
    tmp_path_factory: pytest.TempPathFactory, shapes: Any, cut: float
) -> None:
    folder, wanted = tmp_path_factory.mktemp("any"), tensors(shapes)
    save_file(wanted, folder / "model.safetensors", metadata={"format": "pt"})
    entries = read_folder(folder)
    assert entries.keys() == wanted.keys()
    with writing_shard(
        folder / "copy.safetensors", [(name, one.dtype, one.shape) for name, one in entries.items()]
    ) as shard:
        for name, one in entries.items():
            assert (one.shape, NAMES[str(wanted[name].dtype).removeprefix("torch.")]) == (
                tuple(wanted[name].shape),
                one.dtype,
            )
            middle = int(one.rows * cut)
            append_rows(shard, read_rows(one, 0, middle))
            append_rows(shard, read_rows(one, middle))
    copied = load_file(folder / "copy.safetensors")
    with (folder / "copy.safetensors").open("rb") as file:
        assert int.from_bytes(file.read(8), "little") % 8 == 0  # its tensors begin where any type may
    for name, value in wanted.items():
        assert torch.equal(copied[name], value)


def test_too_few_and_too_many_bytes_are_a_fault_of_the_writer(tmp_path: Path) -> None:
    for count in (1, 3):
        with (
            pytest.raises(AssertionError, match="where its header says 4"),
            writing_shard(tmp_path / "m", [("t", "F16", (2,))]) as shard,
        ):
            append_rows(shard, torch.zeros(count, dtype=torch.float16))


def write(file: Path, header: dict[str, Any] | str, size: int) -> Path:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
    return file


def entry(first: int, last: int, shape: tuple[int, ...] = (2,), dtype: str = "F16") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [first, last]}


BROKEN: dict[str, tuple[Any, int, str]] = {
    "overlap": ({"a": entry(0, 4), "b": entry(2, 6)}, 6, "Q-GGUF-006"),
    "hole": ({"a": entry(0, 4), "b": entry(6, 10)}, 10, "Q-GGUF-006"),
    "wrong size": ({"a": entry(0, 6)}, 6, "Q-GGUF-006"),
    "negative": ({"a": entry(0, 4, (-1, -2))}, 4, "Q-GGUF-006"),
    "unknown type": ({"a": entry(0, 4, (8,), "F4")}, 4, "Q-GGUF-009"),
    "cut": ({"a": entry(0, 4)}, 3, "Q-GGUF-006"),
    "too long": ({"a": entry(0, 4)}, 5, "Q-GGUF-006"),
    "twice": ('{"a": {}, "a": {}}', 0, "Q-GGUF-006"),
    "no offsets": ({"a": {"dtype": "F16", "shape": [2]}}, 4, "Q-GGUF-006"),
    "no JSON": ("{", 0, "Q-GGUF-006"),
    "a list": ("[]", 0, "Q-GGUF-006"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_file_that_is_not_whole_is_refused(fault: str, tmp_path: Path) -> None:
    header, size, reason = BROKEN[fault]
    with pytest.raises(DataError, match=reason):
        read_header(write(tmp_path / "model.safetensors", header, size))


@pytest.mark.parametrize("text", [b"", b"\x05", struct.pack("<Q", 1 << 40), struct.pack("<Q", 99) + b"{}"])
def test_a_file_without_a_whole_header_is_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(text)
    with pytest.raises(DataError, match="Q-GGUF-006"):
        read_folder(tmp_path)


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    save_file({"t": torch.zeros(100, 8)}, tmp_path / "model.safetensors")
    found = read_folder(tmp_path)["t"]
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:-64])
    with pytest.raises(DataError, match="Q-GGUF-006"):
        read_rows(found)


def shards(folder: Path, weights: dict[str, str], held: dict[str, list[str]]) -> Path:
    for file, names in held.items():
        save_file({name: torch.zeros(2) for name in names}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    return folder


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    shards(
        tmp_path,
        {"a": "1.safetensors", "b": "2.safetensors"},
        {"2.safetensors": ["b"], "1.safetensors": ["a"], "consolidated.safetensors": ["a"]},
    )
    assert {name: one.file.name for name, one in read_folder(tmp_path).items()} == {
        "a": "1.safetensors",
        "b": "2.safetensors",
    }


WRONG_INDEX: dict[str, tuple[dict[str, str], dict[str, list[str]], str]] = {
    "missing shard": ({"a": "1.safetensors", "b": "2.safetensors"}, {"1.safetensors": ["a"]}, "Q-GGUF-007"),
    "missing tensor": (
        {"a": "1.safetensors", "b": "1.safetensors"},
        {"1.safetensors": ["a"]},
        "Q-GGUF-007.* b ",
    ),
    "unnamed tensor": ({"a": "1.safetensors"}, {"1.safetensors": ["a", "b"]}, "Q-GGUF-007.* b "),
    "wrong shard": (
        {"a": "2.safetensors", "b": "1.safetensors"},
        {"1.safetensors": ["a"], "2.safetensors": ["b"]},
        "Q-GGUF-007.* a ",
    ),
    "in two shards": (
        {"a": "1.safetensors", "b": "2.safetensors"},
        {"1.safetensors": ["a"], "2.safetensors": ["a", "b"]},
        "Q-GGUF-008",
    ),
    "outside": ({"a": "../1.safetensors"}, {"1.safetensors": ["a"]}, "Q-GGUF-007"),
}


@pytest.mark.parametrize("fault", WRONG_INDEX)
def test_an_index_that_contradicts_the_shards_is_refused(fault: str, tmp_path: Path) -> None:
    weights, held, reason = WRONG_INDEX[fault]
    with pytest.raises(DataError, match=reason):
        read_folder(shards(tmp_path, weights, held))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Q-GGUF-007"):
        read_folder(tmp_path)
