"""gguf_file: a complete file is described, a torn one refused; the fallback count is llama-quantize's own."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_edit import write_gguf
from make import ran
from tiny import tiny_gguf

from pipeline.core.errors import DataError
from pipeline.gguf.file import check_gguf, describe, is_made, kv_cache_bytes, write_not_made
from pipeline.gguf.header import read_header
from pipeline.gguf.patch import read_patch
from pipeline.gguf.safetensors_rows import read_header as read_safetensors
from pipeline.llamacpp.tools import Toolchain


def test_the_fallback_count_is_llama_quantizes(tools: Toolchain, tmp_path: Path) -> None:
    source, target = tiny_gguf(tmp_path / "small.gguf"), tmp_path / "q4.gguf"  # of 32 and 64: no K-quant fits
    done = ran([tools.tool("llama-quantize"), source, target, "Q4_K_M"])
    output = re.search(r"(\d+) of (\d+) tensor\(s\) required fallback", done.stdout + done.stderr)
    assert output, done.stderr
    figures = describe(target)
    assert (figures["fallback_tensors"], figures["tensors"]) == (int(output[1]), int(output[2]))


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_cut_file_is_refused(tmp_path: Path, keep: float) -> None:
    whole = tiny_gguf(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(DataError, match="Q-GGUF-003"):
        check_gguf(cut)


# stored rows, and weights of a row: one of whole blocks of 256, two that fall back, and what never does
ROWS = {
    "blk.0.ffn_down.weight": ((3, 144), 12),  # Q4_K: 256 weights
    "blk.0.attn_q.weight": ((2, 44), 6),  # Q5_0: 64
    "blk.0.attn_k.weight": ((2, 34), 8),  # Q8_0: 32
    "output.weight": ((2, 34), 8),
    "blk.0.attn_v.weight": ((2, 100), 1),  # F16: 50
    "blk.0.attn_norm.weight": ((34,), 8),
}


@pytest.mark.parametrize(
    ("fields", "fallbacks"),
    [
        ({"general.file_type": 15}, {"F16": 1, "Q5_0": 1, "Q8_0": 1}),  # Q4_K_M
        ({"general.file_type": 30}, {"F16": 1, "Q5_0": 1, "Q8_0": 1}),  # IQ4_XS
        ({"general.file_type": 2}, {"F16": 1}),  # Q4_0, which has blocks of 32
        ({"general.file_type": 1}, {}),  # F16
        ({}, {}),
    ],
)
def test_what_a_file_is_made_of(fields: dict[str, Any], fallbacks: dict[str, int], tmp_path: Path) -> None:
    tensors = {name: (np.zeros(shape, np.uint8), kind) for name, (shape, kind) in ROWS.items()}
    file = write_gguf(tmp_path / "x.gguf", tensors, fields)
    assert describe(file) == {
        "bytes": file.stat().st_size,
        "parameters": 1156,
        "bits_per_weight": 6.159,  # of 890 bytes
        "tensors": 6,
        "tensor_types": {"F16": 1, "Q4_K": 1, "Q5_0": 1, "Q8_0": 3},
        "fallback_tensors": sum(fallbacks.values()),
        "fallback_types": fallbacks,
    }


def test_a_header_is_what_the_gguf_package_reads(gguf_file: Path) -> None:
    from gguf import GGUFReader

    header, reader = read_header(gguf_file), GGUFReader(gguf_file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert header.fields == {name: value for name, value in fields.items() if not name.startswith("GGUF.")}
    assert header.tensors == {
        tensor.name: (tuple(tensor.shape.tolist()), int(tensor.tensor_type)) for tensor in reader.tensors
    }


def test_what_stands_in_for_a_file_says_why(tmp_path: Path) -> None:
    write_not_made(tmp_path / "x.gguf", "convert.type")
    fields = {"general.architecture": "none", "quench.not_made": "convert.type"}
    assert read_header(tmp_path / "x.gguf").fields == fields
    assert (is_made(tmp_path / "x.gguf"), is_made(tiny_gguf(tmp_path / "made.gguf"))) == (False, True)
    with pytest.raises(DataError, match=r"Q-GGUF-004: .* for convert\.type:"):
        check_gguf(tmp_path / "x.gguf")
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(DataError, match="Q-GGUF-003:"):
        is_made(tmp_path / "x.gguf")


@pytest.mark.parametrize(
    ("heads", "size"),
    [
        ({"head_count": 1, "head_count_kv": None}, 32 + 32),
        ({"head_count_kv": 2}, 2 * (8 + 8)),
        ({"key_length": 6, "value_length": 10}, 4 * (6 + 10)),
        ({"head_count": 0}, None),  # as RWKV, which has no attention
        ({"key_length": "long"}, None),
    ],
)
def test_a_cache_is_as_large_as_the_heads_tell(
    heads: dict[str, Any], size: int | None, tmp_path: Path
) -> None:
    fields = {f"llama__attention__{name}": value for name, value in heads.items()}
    wanted = size and size * 2 * 3  # float16, of three tokens
    assert kv_cache_bytes(tiny_gguf(tmp_path / "x.gguf", **fields), 3) == wanted


@pytest.mark.parametrize("reads", [check_gguf, read_patch, read_safetensors])
@pytest.mark.parametrize("kind", ["named pipe", "device"])
def test_what_has_no_end_is_refused_unopened(
    tmp_path: Path, reads: Callable[[Path], object], kind: str
) -> None:
    path = tmp_path / "file"
    if kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    with pytest.raises(DataError, match="Q-CORE-008"):
        reads(path)
