"""Preferences and GRPO on a mixture of experts: its experts and its router learn, and a run that was broken
off ends in the same bytes.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run_stages
from killed import kill_at
from preferences import says, tokens_of, user
from tiny import tiny_moe, tiny_params, write_project
from train_runs import result, settings_in, train_in

from pipeline.gguf.safetensors_rows import read_folder, read_rows
from pipeline.llamacpp.tools import Toolchain

REWARD = "def length(reference, answer, row):\n    return len(answer) % 10 / 10\n"
GRPO = {
    "rewards": {"python:length.py:length": 1.0},
    "group_size": 4,
    "max_new_tokens": 6,
    "steps_per_round": 2,
    "rollouts": "in-process",
}
SETTINGS = {
    "bnb_4bit_compute_dtype": "float32",
    "experts": ["gate_proj", "up_proj", "down_proj", "router"],
    "lora_dropout": 0.0,
    "max_steps": 4,
    "save_steps": 2,
    "eval_steps": 4,
    "sample_rows": 0,
    "learning_rate": 1.0e-2,
    "warmup_ratio": 0.0,
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tools: Toolchain) -> Path:
    """A project whose base is a tiny Qwen3-MoE, in 16 bit, up to `preprocess` for GRPO. Read only."""
    root = tmp_path_factory.mktemp("mixture")
    params = tiny_params(tiny_moe(root / "hf", tools, "Qwen3Moe"))
    params["base"]["quantization"] = "none"
    params["train"] |= SETTINGS | {"method": "grpo", "grpo": params["train"]["grpo"] | GRPO}
    folder = write_project(root / "project", params)
    (folder / "data/evaluation").mkdir()
    (folder / "data/evaluation/length.py").write_text(REWARD)
    return run_stages(folder, ("base", "curate", "preprocess"))


@pytest.fixture
def pairs(project: Path, tmp_path: Path) -> Path:
    """`data/tokens` of four pairs."""
    rows = [
        {
            "kind": "preference",
            "messages": [user(f"Question {number}?")],
            "chosen": [says(f"Yes, {number}.")],
            "rejected": [says(f"It is {number + 1}.")],
        }
        for number in range(4)
    ]
    asked = settings_in(project, method="dpo")
    return tokens_of(project, tmp_path, rows, settings=asked, length=200, packing=True)


def run(project: Path, tokens: Path, root: Path, method: str) -> dict[str, Any]:
    """`train` below `root`, from its checkpoints if there are any."""
    return train_in(project, root, settings_in(project, method=method), tokens=tokens, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "dpo"])
def test_a_mixtures_run_that_was_killed_ends_in_the_same_bytes(
    method: str, project: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.stages.train.stage.use_all_cores", lambda: torch.set_num_threads(1))
    tokens = pairs if method == "dpo" else project / "data/tokens"
    report = run(project, tokens, tmp_path / "whole", method)
    assert report["experts_adapted"] == 8 > report["experts_idle"]
    learned = read_folder(tmp_path / "whole/adapter")
    routers = [name for name in learned if name.endswith("mlp.gate.lora_B.weight")]
    assert len(routers) == 2 and all(bool(read_rows(learned[name]).any()) for name in routers)
    place = "pipeline.stages.train.loop:Trainer.micro_batch"
    kill_at(place, 3, run, project, tokens, tmp_path / "broken", method)
    assert run(project, tokens, tmp_path / "broken", method)["resumed_from"] == "checkpoint-2"
    assert result(tmp_path / "broken") == result(tmp_path / "whole")
