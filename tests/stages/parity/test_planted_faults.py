"""A lost bias, and q and k exchanged, in a model that looks trained, between training and serving: found by
the weights and by what the models say.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from conftest import run_stages
from gguf_edit import change_tensors
from kept import kept
from parity_outputs import LIMITS, bench, chain

from pipeline.__main__ import main
from pipeline.llamacpp.converters import HeaderFields, to_gguf
from pipeline.llamacpp.tools import Toolchain
from pipeline.metrics import forward
from pipeline.stages.parity.gguf_weights import gguf_weights
from pipeline.stages.parity.merged_weights import merged_weights
from pipeline.stages.parity.outputs import output_checks

HF, GGUF = "model.layers.0.self_attn.{}_proj.{}", "blk.0.attn_{}.{}"
MERGED = ("base", "curate", "preprocess", "train", "merge", "convert", "quantize@Q4_K_M", "parity")
SERVED = ("base", "curate", "preprocess", "train", "lora", "parity")
Stored = dict[str, Any]  # a tensor's bytes by its name

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tools: Toolchain) -> Path:
    """A project up to parity, which passed; its model looks trained, is merged and quantized. Read only."""

    def make(root: Path) -> Path:
        params = tiny.tiny_params(tiny.tiny_qwen2(root / "hf", tools, words=tiny.WORDS, trained=True))
        params["quantize"]["levels"] = ["Q4_K_M"]
        params["evaluate"]["models"] = ["F16", "Q4_K_M"]
        return run_stages(tiny.write_project(root, params), MERGED)

    return kept("trained-merged", make, MERGED)


@pytest.fixture(scope="module")
def served_trained(tools: Toolchain) -> Path:
    """The same on the model's GGUF at Q4_K_M, served with the adapter beside it. Read only."""

    def make(root: Path) -> Path:
        model = tiny.tiny_qwen2(root / "hf", tools, words=tiny.WORDS, trained=True)
        to_gguf(tools, model, root / "tiny.gguf", "F16", HeaderFields("tiny", "qwen2"))
        params = tiny.gguf_params(root / "tiny.gguf")
        # At 1e-3 the first choices of 128 positions are at their limit on a CPU without AMX.
        params["train"]["learning_rate"] = 5.0e-4
        return run_stages(tiny.write_project(root, params), SERVED)

    return kept("trained-served", make, SERVED)


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


def checks_of(root: Path) -> dict[str, str]:
    """The verdict of each parity check in a project's report."""
    report = json.loads((root / "reports/parity.json").read_text(encoding="utf-8"))
    return {key: check["verdict"] for key, check in report["checks"].items()}


def failed(checks: dict[str, str]) -> set[str]:
    return {key for key, verdict in checks.items() if verdict == "fail"}


# --- nothing is lost ---


def test_a_merged_model_that_looks_trained_passes(trained: Path) -> None:
    checks = checks_of(trained)
    weights, outputs = ("weights_merged", "weights_gguf"), ("outputs_sixteen", "outputs_gguf")
    assert not failed(checks) and {checks[key] for key in (*weights, *outputs)} == {"pass"}


def test_a_served_model_that_looks_trained_passes(served_trained: Path) -> None:
    checks = checks_of(served_trained)
    outputs = ("outputs_bare", "outputs_served")
    assert not failed(checks) and {checks[key] for key in outputs} == {"pass"}


# --- faults ---


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_merge_is_found(fault: str, trained: Path, tmp_path: Path, tools: Toolchain) -> None:
    models = trained / "models"
    merged = damaged_folder(models / "merged", tmp_path / "merged", fault)
    weights = merged_weights(models / "base", models / "adapter", merged)
    assert (weights.verdict, "layers.0.self_attn" in weights.sentence) == ("fail", True)
    checks = output_checks(chain(trained, merged=merged, levels={}), bench(tmp_path, tools), LIMITS, {})
    assert [checks[key].verdict for key in ("outputs_sixteen", "outputs_gguf")] == ["fail"] * 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_conversion_is_found(
    fault: str, trained: Path, tmp_path: Path, tools: Toolchain
) -> None:
    gguf = damaged_gguf(trained / "models/gguf/tiny-F16.gguf", tmp_path / "tiny-F16.gguf", fault)
    weights = gguf_weights(trained / "models/merged", gguf)
    assert (weights.verdict, "blk.0.attn_" in weights.sentence) == ("fail", True)
    checks = output_checks(chain(trained, gguf=gguf, levels={}), bench(tmp_path, tools), LIMITS, {})
    assert [checks[key].verdict for key in ("outputs_sixteen", "outputs_gguf")] == ["pass", "fail"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_between_training_and_what_is_served_is_found(
    fault: str, served_trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made where the GGUF is loaded for training, so that every file is sound."""
    load = forward.load_quantized

    def faulty(*arguments: Any, **more: Any) -> Any:
        model = load(*arguments, **more)
        FAULTS[fault](in_bytes(model.state_dict()), HF)
        return model

    monkeypatch.setattr(forward, "load_quantized", faulty)
    root = Path(shutil.copytree(served_trained, tmp_path / "project"))
    assert main(["parity", "--root", str(root)]) == 5
    found = failed(checks_of(root))
    assert "outputs_bare" in found and not any(key.startswith("weights") for key in found)
