"""serving figures: load time and peak memory of a real llama-server, what nvidia-smi says of a process."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from make import script
from qwen2_variants import cut_models
from tiny import tiny_params

from pipeline.config.sections import Serve
from pipeline.core.usage import peak_memory
from pipeline.llamacpp.server_command import BATCH_TOKENS
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.evaluate.speed import gpu_memory, serving_figures


def test_a_served_model_is_measured(tools: Toolchain) -> None:
    model = cut_models(tools) / "tiny-F16.gguf"
    asked = tiny_params(Path("base"))["serve"] | {"threads": 1, "ctx_size": 512, "parallel": 2}
    found = serving_figures(model, Serve(**asked), tools)
    placed = {"ctx_size", "parallel", "n_gpu_layers"}
    assert found.keys() == placed | {"load_seconds", "peak_memory_bytes", "gpu_memory_bytes"}
    assert (found["ctx_size"], found["parallel"], found["n_gpu_layers"]) == (512, 2, 0)
    assert 0 < found["load_seconds"] < 60
    assert found["gpu_memory_bytes"] is None  # nothing was put on a GPU
    if Path("/proc/self/status").exists():
        assert model.stat().st_size < found["peak_memory_bytes"] < 10e9


@pytest.mark.parametrize(("ctx_size", "length"), [(4096, BATCH_TOKENS), (100, 100 - 8)])
def test_memory_is_looked_at_after_a_whole_batch(
    monkeypatch: pytest.MonkeyPatch, tools: Toolchain, ctx_size: int, length: int
) -> None:
    """A short prompt leaves most of the compute buffers untouched, and what is untouched is not resident."""
    asked: dict[str, Any] = {}

    class Server:
        process = SimpleNamespace(pid=os.getpid())
        parallel, n_gpu_layers = 1, 0

        def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            asked[path] = body
            return {"tokens": list(range(len(body.get("content", "").split())))}

    monkeypatch.setattr("pipeline.stages.evaluate.speed.serving", lambda *_, **__: nullcontext(Server()))
    serving_figures(
        Path("x.gguf"), Serve(**tiny_params(Path("base"))["serve"] | {"ctx_size": ctx_size}), tools
    )
    assert len(asked["/completion"]["prompt"]) == length
    assert asked["/completion"]["n_predict"] == 8


def test_memory_of_a_process() -> None:
    if Path("/proc/self/status").exists():
        assert (peak_memory(os.getpid()) or 0) > 10e6
    assert peak_memory(2**22 + 1) is None  # above Linux's largest process id


LISTING = "4711, 512\n815, 6144\n4711, 256\n99, [N/A]\n"


@pytest.fixture
def nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Have nvidia-smi print a text, or fail with it."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def prints(text: str, status: int = 0) -> None:
        (tmp_path / "listing").write_text(text)
        script(tmp_path / "nvidia-smi", f"cat {tmp_path / 'listing'}; exit {status}")

    return prints


def test_a_process_is_found_in_nvidia_smis_list(nvidia_smi: Callable[..., None]) -> None:
    nvidia_smi(LISTING)
    assert gpu_memory(4711) == 768 << 20  # on two GPUs
    assert gpu_memory(815) == 6 << 30
    assert gpu_memory(471) is None
    assert gpu_memory(99) is None  # the driver doesn't say: not measured, not 0
    nvidia_smi("No running processes found\n")
    assert gpu_memory(1) is None


def test_without_nvidia_smi_or_where_it_fails_nothing_is_measured(
    nvidia_smi: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvidia_smi("4711, 100\n", 9)
    assert gpu_memory(4711) is None
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert gpu_memory(4711) is None
