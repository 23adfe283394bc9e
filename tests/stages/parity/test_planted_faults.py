"""A lost bias, and q and k exchanged, between training and serving: by the weights and by what the models
say.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_edit import change_tensors
from test_parity_outputs import LIMITS, bench, chain

from pipeline.__main__ import main
from pipeline.llamacpp.tools import Toolchain
from pipeline.metrics import forward
from pipeline.stages.parity.gguf_weights import gguf_weights
from pipeline.stages.parity.merged_weights import merged_weights
from pipeline.stages.parity.outputs import output_checks

HF, GGUF = "model.layers.0.self_attn.{}_proj.{}", "blk.0.attn_{}.{}"
Stored = dict[str, Any]  # a tensor's bytes by its name


def lose(part: str) -> Callable[[Stored, str], None]:
    def change(stored: Stored, name: str) -> None:
        stored[name.format(part, "bias")][:] = 0

    return change


def exchange(stored: Stored, name: str) -> None:
    """The rows of k and as many of q."""
    for kind in ("weight", "bias"):
        q, k = (stored[name.format(part, kind)] for part in "qk")
        q[: len(k)], k[:] = k.copy(), q[: len(k)].copy()


FAULTS = {"q": lose("q"), "k": lose("k"), "v": lose("v"), "q and k": exchange}


def in_bytes(tensors: dict[str, Any]) -> Stored:
    """The bytes of PyTorch's tensors, in their own memory."""
    import torch

    return {name: values.view(-1).view(torch.uint8).numpy() for name, values in tensors.items()}


def damaged_folder(source: Path, target: Path, fault: str) -> Path:
    """A copy of a Hugging Face folder with a fault of `FAULTS`."""
    from safetensors.torch import load_file, save_file

    file = Path(shutil.copytree(source, target)) / "model.safetensors"
    tensors = load_file(file)
    FAULTS[fault](in_bytes(tensors), HF)
    save_file(tensors, file, metadata={"format": "pt"})
    return target


def damaged_gguf(source: Path, target: Path, fault: str) -> Path:
    """A copy of a GGUF with a fault of `FAULTS`."""

    def change(tensors: dict[str, Any]) -> dict[str, Any]:
        stored = {name: np.frombuffer(data, np.uint8).copy() for name, (_, _, data) in tensors.items()}
        FAULTS[fault](stored, GGUF)
        return {name: (shape, number, stored[name].tobytes()) for name, (shape, number, _) in tensors.items()}

    change_tensors(Path(shutil.copyfile(source, target)), change)
    return target


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_merge_is_found(fault: str, finished: Path, tmp_path: Path, tools: Toolchain) -> None:
    models = finished / "models"
    merged = damaged_folder(models / "merged", tmp_path / "merged", fault)
    weights = merged_weights(models / "base", models / "adapter", merged)["weights_merged"]
    assert (weights.verdict, "layers.0.self_attn" in weights.sentence) == ("fail", True)
    checks = output_checks(chain(finished, merged=merged, levels={}), bench(tmp_path, tools), LIMITS)
    assert [checks[key].verdict for key in ("outputs_sixteen", "outputs_gguf")] == ["fail"] * 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_conversion_is_found(
    fault: str, finished: Path, tmp_path: Path, tools: Toolchain
) -> None:
    gguf = damaged_gguf(finished / "models/gguf/tiny-F16.gguf", tmp_path / "tiny-F16.gguf", fault)
    weights = gguf_weights(finished / "models/merged", gguf)
    assert (weights.verdict, "blk.0.attn_" in weights.sentence) == ("fail", True)
    checks = output_checks(chain(finished, gguf=gguf, levels={}), bench(tmp_path, tools), LIMITS)
    assert [checks[key].verdict for key in ("outputs_sixteen", "outputs_gguf")] == ["pass", "fail"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_model_that_was_trained_is_found(
    fault: str, served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made where the GGUF is loaded, so that every file is sound."""
    load = forward.load_quantized

    def faulty(*arguments: Any, **more: Any) -> Any:
        model = load(*arguments, **more)
        FAULTS[fault](in_bytes(model.state_dict()), HF)
        return model

    monkeypatch.setattr(forward, "load_quantized", faulty)
    root = Path(shutil.copytree(served, tmp_path / "project"))
    assert main(["parity", "--root", str(root)]) == 5
    checks = json.loads((root / "reports/parity.json").read_text(encoding="utf-8"))["checks"]
    failed = {key for key, check in checks.items() if check["verdict"] == "fail"}
    assert "outputs_bare" in failed and not any(key.startswith("weights") for key in failed)
