"""Layers for the GPU: what llama.cpp lists, what fits its free memory, what a build for the CPU refuses."""

from dataclasses import astuple
from pathlib import Path

import pytest
from make import script
from shaped_gguf import LAYERS, shaped, written

from pipeline.core.errors import ConfigError
from pipeline.gguf.file import kv_cache_bytes
from pipeline.llamacpp.devices import devices, gpu_layers, placement
from pipeline.llamacpp.tools import Toolchain

NONE = "  (none)"
CARD = "  CUDA0: NVIDIA GeForce RTX 4060 (8188 MiB, 7800 MiB free)"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("gguf") / "model.gguf", shaped(64, 128, True, 2))


def build(folder: Path, *lines: str) -> Toolchain:
    """A llama.cpp that lists these devices."""
    text = "\n".join(["Available devices:", *lines])
    script(folder / "llama-server", f"cat <<'END'\n{text}\nEND")
    return Toolchain(folder, folder)


def test_devices_are_as_llama_cpp_lists_them(tmp_path: Path) -> None:
    assert devices(build(tmp_path, NONE)) == []
    slow = "  Vulkan1: llvmpipe (LLVM 15.0.6, 256 bits) (24576 MiB, 1 MiB free)"
    assert [astuple(device) for device in devices(build(tmp_path, CARD, slow))] == [
        ("CUDA0", "NVIDIA GeForce RTX 4060", 8188 << 20, 7800 << 20),
        ("Vulkan1", "llvmpipe (LLVM 15.0.6, 256 bits)", 24576 << 20, 1 << 20),
    ]


def test_auto_takes_all_layers_that_fit_and_none_without_a_gpu(tmp_path: Path, model: Path) -> None:
    assert gpu_layers(build(tmp_path, NONE), model, "auto", tokens=512) == 0
    assert gpu_layers(build(tmp_path, CARD), model, "auto", tokens=512) == 99
    full = "  CUDA0: NVIDIA GeForce RTX 4060 (8188 MiB, 900 MiB free)"
    assert gpu_layers(build(tmp_path, full), model, "auto", tokens=512) == 0
    assert gpu_layers(build(tmp_path, full, CARD), model, "auto", tokens=512) == 99


def test_layers_are_counted_with_their_part_of_the_cache(tmp_path: Path, model: Path) -> None:
    """Of a card with 1 GB that stays free."""
    tokens = 1 << 20  # so that all take gigabytes, and a card's MiB are a small part of a layer
    cache = kv_cache_bytes(model, tokens)
    assert cache
    everything = (model.stat().st_size + cache) * 1.1 / (1 << 20)  # MiB

    def layers(room: float, tokens: int = tokens) -> int:
        card = f"  CUDA0: a card (65536 MiB, {1024 + int(room)} MiB free)"
        return gpu_layers(build(tmp_path, card), model, "auto", tokens=tokens)

    assert (layers(everything + 1), layers(everything / 2 + 1), layers(0)) == (99, (LAYERS + 1) // 2, 0)
    assert layers(everything / 2 + 1, 2 * tokens) < (LAYERS + 1) // 2


def test_a_number_is_taken_as_it_is_or_refused(tmp_path: Path, model: Path) -> None:
    assert gpu_layers(build(tmp_path, CARD), model, 7, tokens=512) == 7
    with pytest.raises(ConfigError, match="Q-LLAMACPP-024"):
        gpu_layers(build(tmp_path, NONE), model, 7, tokens=512)
    assert gpu_layers(Toolchain(tmp_path / "nowhere", tmp_path), model, 0, tokens=512) == 0


def test_several_answers_at_once_only_on_a_gpu(tmp_path: Path, model: Path) -> None:
    wish = {"ctx_size": 256, "parallel": "auto", "n_gpu_layers": "auto"}
    assert placement(build(tmp_path, CARD), model, **wish) == (4, 99)  # type: ignore[arg-type]
    assert placement(build(tmp_path, NONE), model, **wish) == (1, 0)  # type: ignore[arg-type]
    assert placement(build(tmp_path, NONE), model, **wish | {"parallel": 3}) == (3, 0)  # type: ignore[arg-type]
