"""gguf_file: a complete file is described, a torn one refused; the fallback count is llama-quantize's own."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from make import ran
from tiny import tiny_gguf

from pipeline.core.errors import DataError
from pipeline.gguf.file import check_gguf, describe, kv_cache_bytes
from pipeline.gguf.patch import read_patch
from pipeline.gguf.safetensors_rows import read_header as read_safetensors
from pipeline.llamacpp.tools import Toolchain


def test_a_level_is_described(finished: Path) -> None:
    f16, q4 = (describe(finished / f"models/gguf/tiny-{name}.gguf") for name in ("F16", "Q4_K_M"))
    assert f16["parameters"] == q4["parameters"]
    assert 15.9 < f16["bits_per_weight"] < 16.1
    assert q4["bits_per_weight"] < 8
    assert sum(q4["tensor_types"].values()) == q4["tensors"]
    assert f16["fallback_tensors"] == q4["fallback_tensors"] == 0


def test_the_fallback_count_is_llama_quantizes(tools: Toolchain, tmp_path: Path) -> None:
    source, target = tiny_gguf(tmp_path / "small.gguf"), tmp_path / "q4.gguf"  # of 32 and 64: no K-quant fits
    done = ran([tools.tool("llama-quantize"), source, target, "Q4_K_M"])
    output = re.search(r"(\d+) of (\d+) tensor\(s\) required fallback", done.stdout + done.stderr)
    assert output, done.stderr
    figures = describe(target)
    assert (figures["fallback_tensors"], figures["tensors"]) == (int(output[1]), int(output[2]))


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_cut_file_is_refused(finished: Path, tmp_path: Path, keep: float) -> None:
    whole = (finished / "models/gguf/tiny-Q4_K_M.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(DataError, match="Q-GGUF-003"):
        check_gguf(cut)


@pytest.mark.parametrize("strange", [{"head_count": 0}, {"key_length": "long"}])
def test_a_cache_that_the_heads_do_not_tell_is_not_known(tmp_path: Path, strange: dict[str, Any]) -> None:
    """RWKV has no attention and writes head_count 0."""
    fields = {f"llama__attention__{name}": value for name, value in strange.items()}
    assert kv_cache_bytes(tiny_gguf(tmp_path / "x.gguf", **fields), 1) is None


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
