"""serving figures: load time and peak memory of a real llama-server, and what nvidia-smi says of one process."""

import os
from pathlib import Path

import pytest
from qwen2_variants import cut_models
from tiny import tiny_params

from pipeline.evaluation.serving import gpu_memory, held_by, serving_figures
from pipeline.llamacpp.server_process import peak_memory
from pipeline.llamacpp.tools import Toolchain
from pipeline.sections import Serve


def test_a_served_model_is_measured(tmp_path_factory: pytest.TempPathFactory, tools: Toolchain) -> None:
    model = cut_models(tmp_path_factory, tools) / "tiny-F16.gguf"
    asked = tiny_params(Path("base"))["serve"] | {"threads": 1, "ctx_size": 512, "parallel": 2}
    found = serving_figures(model, Serve(**asked), tools)
    assert found.keys() == {"ctx_size", "parallel", "load_seconds", "peak_memory_bytes", "gpu_memory_bytes"}
    assert (found["ctx_size"], found["parallel"]) == (512, 2)
    assert 0 < found["load_seconds"] < 60
    assert found["gpu_memory_bytes"] is None  # nothing was put on a GPU
    if Path("/proc/self/status").exists():
        assert model.stat().st_size < found["peak_memory_bytes"] < 10e9


def test_memory_of_a_process() -> None:
    if Path("/proc/self/status").exists():
        assert (peak_memory(os.getpid()) or 0) > 10e6
    assert peak_memory(2**22 + 1) is None  # above Linux's largest process id


LISTING = "4711, 512\n  815, 6144\n4711, 256\n99, [N/A]\n"


def test_a_process_is_found_in_nvidia_smis_list() -> None:
    assert held_by(4711, LISTING) == 768 << 20  # on two GPUs
    assert held_by(815, LISTING) == 6 << 30
    assert held_by(471, LISTING) is None
    assert held_by(99, LISTING) is None  # the driver doesn't say: not measured, not 0
    assert held_by(1, "No running processes found\n") is None


def test_without_nvidia_smi_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_memory(os.getpid()) is None


def test_a_failing_nvidia_smi_measures_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpu_memory(os.getpid()) is None
    tool.write_text(f"#!/bin/sh\necho '{os.getpid()}, 100'\n")
    assert gpu_memory(os.getpid()) == 100 << 20
