"""Mixtures of experts through every stage: trained on NF4, merged and quantized; trained on a GGUF's own
blocks and served with the experts' adapter. And what must not pass: experts in another order.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from conftest import run_stages
from gguf_edit import change_rows
from kept import kept
from killed import kill_at
from train_runs import result, run_in

from pipeline.gguf.header import read_header
from pipeline.gguf.safetensors_rows import read_folder, read_rows
from pipeline.gguf.tensors import gguf_tensors
from pipeline.llamacpp.converters import HeaderFields, to_gguf
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.parity.gguf_weights import gguf_weights
from pipeline.stages.parity.served_files import lora_weights

EXPERTS = 4
STACKS = [
    f"blk.{layer}.ffn_{part}_exps.weight.lora_{half}"
    for layer in range(2)
    for part in ("gate", "up", "down")
    for half in "ab"
]
GATES = [f"blk.{layer}.ffn_gate_inp.weight" for layer in range(2)]
PARTS = ["gate_proj", "up_proj", "down_proj"]
TRAINED = {"Qwen2Moe": PARTS, "Qwen3Moe": [*PARTS, "router"], "Mixtral": [*PARTS, "router"]}
MERGED = ("base", "curate", "preprocess", "train", "merge", "convert", "quantize@Q4_K_M", "parity")
SERVED = ("base", "curate", "preprocess", "train", "lora", "parity")
KINDS = ("Qwen2Moe", "Mixtral", "Qwen3Moe")
MODEL_TYPES = {"Qwen2Moe": "qwen2_moe", "Mixtral": "mixtral", "Qwen3Moe": "qwen3_moe"}

pytestmark = pytest.mark.slow


def merged_project(kind: str, tools: Toolchain) -> Path:
    """A project with a tiny mixture, trained on NF4, up to a level, all parity checks measured. Read only."""

    def make(root: Path) -> Path:
        params = tiny.tiny_params(tiny.tiny_moe(root / "hf", tools, kind))
        params["train"]["experts"] = TRAINED[kind]
        params["merge"]["base"] = "nf4"
        params["parity"]["depth"] = "full"
        params["quantize"]["levels"] = ["Q4_K_M"]
        params["evaluate"]["models"] = ["F16", "Q4_K_M"]
        return run_stages(tiny.write_project(root, params), MERGED)

    return kept(f"merged-{kind}", make, MERGED)


def served_project(kind: str, tools: Toolchain) -> Path:
    """The same on the mixture's GGUF at Q4_K_M, whose experts' adapter is served beside it. Read only."""

    def make(root: Path) -> Path:
        base = tiny.tiny_moe(root / "hf", tools, kind)
        to_gguf(tools, base, root / "tiny.gguf", "F16", HeaderFields("tiny", "qwen2"))
        params = tiny.gguf_params(root / "tiny.gguf")
        params["train"]["experts"] = [*PARTS, "router"]
        return run_stages(tiny.write_project(root, params), SERVED)

    return kept(f"served-{kind}", make, SERVED)


def checks(project: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project / "reports/parity.json").read_text())["checks"]
    return found


def passed(found: dict[str, Any]) -> set[str]:
    """The checks that passed; none failed."""
    assert not [name for name, one in found.items() if one["verdict"] == "fail"]
    return {name for name, one in found.items() if one["verdict"] == "pass"}


@pytest.mark.base_cells("NF4", "merged", "levels", "parity", families="kind", called=MODEL_TYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_experts_trained_on_nf4_are_merged_quantized_and_served(kind: str, tools: Toolchain) -> None:
    project = merged_project(kind, tools)
    report, found = json.loads((project / "reports/train.json").read_text()), checks(project)
    assert report["experts_adapted"] == 2 * EXPERTS > report["experts_idle"]
    assert passed(found) >= {"weights_merged", "weights_gguf"}
    assert passed(found) >= {"outputs_trained", "outputs_q4_k_m", "outputs_lora"}
    tensors = read_header(project / "models/gguf/tiny-lora.gguf").tensors
    assert set(STACKS) <= set(tensors) and all(tensors[name][0][2] == EXPERTS for name in STACKS)
    router = {f"{name}.lora_{half}" for name in GATES for half in "ab"} & set(tensors)
    assert len(router) == (4 if "router" in TRAINED[kind] else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_router_is_what_is_served_and_a_frozen_one_the_bases(kind: str, tools: Toolchain) -> None:
    project, trained = merged_project(kind, tools), "router" in TRAINED[kind]
    before, merged = (routers(project / "models" / name) for name in ("base", "merged"))
    assert [bool((old != new).any()) for old, new in zip(before, merged, strict=True)] == [trained] * 2
    for level in ("F16", "Q4_K_M"):
        tensors = gguf_tensors(project / f"models/gguf/tiny-{level}.gguf")[1]
        for name, wanted in zip(GATES, merged, strict=True):
            found = tensors[name].values(0, EXPERTS).reshape(wanted.shape)
            assert tensors[name].type == "F32" and np.array_equal(found, wanted)


def routers(folder: Path) -> list[Any]:
    """The routers of a Hugging Face folder, by layer, as float32 (experts, hidden)."""
    stored = read_folder(folder)
    names = sorted(name for name in stored if name.endswith(".gate.weight"))
    return [read_rows(stored[name]).float().numpy() for name in names]


@pytest.mark.parametrize("kind", ["Qwen3Moe", "Qwen2Moe", "Mixtral"])
@pytest.mark.base_cells("adapter", "served", families="kind", called=MODEL_TYPES)
def test_experts_trained_on_a_ggufs_blocks_are_served_as_an_adapter(kind: str, tools: Toolchain) -> None:
    project = served_project(kind, tools)
    found, tensors = checks(project), read_header(project / "models/gguf/tiny-lora.gguf").tensors
    assert {f"{name}.lora_{half}" for name in GATES for half in "ab"} <= set(tensors)
    assert passed(found) >= {"weights_file", "weights_lora", "outputs_bare", "outputs_served"}


# --- another order ------------------------------------------------------------------------------------------


def shifted(rows: Any) -> Any:
    """Each expert in the place of the one behind it."""
    return np.roll(rows, len(rows) // EXPERTS, axis=0)


@pytest.mark.parametrize("kind", ["Qwen2Moe", "Mixtral"])
def test_experts_shifted_by_one_in_the_merged_models_file_are_caught(
    tools: Toolchain, tmp_path: Path, kind: str
) -> None:
    project = merged_project(kind, tools)
    file = tmp_path / "tiny-F16.gguf"
    shutil.copyfile(project / "models/gguf/tiny-F16.gguf", file)
    assert gguf_weights(project / "models/merged", file).verdict == "pass"
    tensor = "blk.1.ffn_up_exps.weight"
    change_rows(file, tensor, shifted)
    check = gguf_weights(project / "models/merged", file)
    assert check.verdict == "fail" and tensor in check.sentence


@pytest.mark.parametrize("half", "ab")
def test_experts_shifted_by_one_in_the_adapters_file_are_caught(
    tools: Toolchain, tmp_path: Path, half: str
) -> None:
    project = served_project("Qwen3Moe", tools)
    base, adapter, file = project / "models/base", project / "models/adapter", tmp_path / "lora.gguf"
    shutil.copyfile(project / "models/gguf/tiny-lora.gguf", file)
    assert lora_weights(base, adapter, file).verdict == "pass"
    tensor = f"blk.0.ffn_down_exps.weight.lora_{half}"
    change_rows(file, tensor, shifted)
    check = lora_weights(base, adapter, file)
    assert check.verdict == "fail" and tensor in check.sentence


# --- resume -------------------------------------------------------------------------------------------------


def test_a_run_that_was_killed_ends_in_the_same_bytes(
    tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, and experts that get no token before the kill, so that no state of theirs is saved."""
    monkeypatch.setattr("pipeline.stages.train.stage.use_all_cores", lambda: torch.set_num_threads(1))
    project = merged_project("Qwen2Moe", tools)
    changed: dict[str, Any] = {"max_steps": 4, "lora_dropout": 0.1, "warmup_ratio": 0.0}
    run_in(project, tmp_path / "whole", **changed)
    place = "pipeline.stages.train.loop:Trainer.micro_batch"
    kill_at(place, 3, run_in, project, tmp_path / "broken", resume=True, **changed)
    report = run_in(project, tmp_path / "broken", resume=True, **changed)
    assert report["resumed_from"] == "checkpoint-2"
    assert result(tmp_path / "broken") == result(tmp_path / "whole")
