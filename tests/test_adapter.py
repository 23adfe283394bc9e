"""Which adapter may be served on which model: by the passports of their GGUFs; and `quench serve --lora` with the real one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny

from pipeline.errors import ConfigError, DataError
from pipeline.serving.adapter import matching_adapter

OF_BASE: dict[str, Any] = {"quench__base__sha256": "a" * 64}
LORA: dict[str, Any] = {"general__type": "adapter", "adapter__type": "lora"}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny.tiny_gguf(tmp_path / "base.gguf", **OF_BASE)


def test_the_adapter_of_the_base(base: Path, tmp_path: Path) -> None:
    adapter = tiny.tiny_gguf(tmp_path / "lora.gguf", **OF_BASE, **LORA)
    assert matching_adapter(base, adapter) == adapter


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (LORA | {"quench__base__sha256": "b" * 64}, r"lora.gguf was trained on another base \(b{12}…\) than base.gguf is a level of \(a{12}…\)"),
        (LORA, "lora.gguf doesn't say its base"),
        (OF_BASE, "is no LoRA adapter"),
    ],
)
def test_other_adapters_are_refused(base: Path, tmp_path: Path, fields: dict[str, str], words: str) -> None:
    with pytest.raises(DataError, match=words):
        matching_adapter(base, tiny.tiny_gguf(tmp_path / "lora.gguf", **fields))


def test_models_that_take_none_are_refused(base: Path, tmp_path: Path) -> None:
    adapter = tiny.tiny_gguf(tmp_path / "lora.gguf", **OF_BASE, **LORA)
    with pytest.raises(ConfigError, match=r"tuned.gguf holds its adapter already"):
        matching_adapter(tiny.tiny_gguf(tmp_path / "tuned.gguf", quench__adapter__sha256="c" * 64, **OF_BASE), adapter)
    with pytest.raises(DataError, match=r"other.gguf doesn't say its base"):
        matching_adapter(tiny.tiny_gguf(tmp_path / "other.gguf"), adapter)
    with pytest.raises(DataError, match="stage convert makes the adapter's GGUF"):
        matching_adapter(base, tmp_path / "nothing.gguf")


def serve(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline.cli", "serve", *words, "--smoke", "1", "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ)


def test_the_command_serves_the_adapter_on_the_base(finished: Path) -> None:
    """The tiny model has learnt nothing, so its answer is cut off: exit 5 says that it was served and asked."""
    done = serve(finished, "base-F16", "--lora")
    assert done.returncode in (0, 5), done.stderr
    assert "answers stopped by themselves" in done.stdout + done.stderr
    refused = serve(finished, "Q4_K_M", "--lora")
    assert refused.returncode == 2
    assert "holds its adapter already" in refused.stderr
