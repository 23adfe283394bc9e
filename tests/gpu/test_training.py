"""On a GPU: one NF4 step is finite, the stage trains and resumes with the paged 8-bit optimizer, and the 8 GB recipe's peak is what it says."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pipeline.__main__ import main
from pipeline.fidelity.finite import finite_record
from pipeline.params import load_params
from pipeline.sections import Training

pytestmark = pytest.mark.gpu

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))
RECIPE = load_params(PROJECT / "recipes" / "qwen2.5-7b-8gb.yaml").training
STEPS = 40  # enough to be killed in the midst of


@pytest.mark.parametrize("on_cpu", [False, True])
def test_a_step_in_nf4_is_finite_and_the_embeddings_stay_where_they_are_told(on_cpu: bool, tmp_path: Path) -> None:
    from peft import get_peft_model

    from benchmarks.random_base import write_base
    from pipeline.training.chunked import chunked_loss
    from pipeline.training.qlora import check_adapter, load_quantised, lora_config

    train = RECIPE.model_copy(update={"embeddings_on_cpu": on_cpu})
    model = get_peft_model(load_quantised(write_base(tmp_path / "base", "tiny"), train), lora_config(train)).to("cuda").train()
    assert check_adapter(model, train) > 0
    assert model.get_input_embeddings().weight.device.type == ("cpu" if on_cpu else "cuda")
    assert model.device.type == "cuda"
    ids = torch.arange(64, device="cuda")[None]
    loss = chunked_loss(model.get_base_model(), {"input_ids": ids, "labels": ids})
    loss.backward()
    assert loss.isfinite()
    assert finite_record(model) == {"nf4_linears_finite": 14, "packed_tensors_finite": 0, "adapter_matrices_finite": 28}
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.requires_grad)


@pytest.fixture
def root(prepared: Path, tmp_path: Path) -> Path:
    """A prepared project with what the 8 GB recipe trains with."""
    root = Path(shutil.copytree(prepared, tmp_path / "project"))
    set_train(root, loss="liger", optim="paged_adamw_8bit", gradient_checkpointing=True, max_steps=STEPS, save_steps=2)
    return root


def set_train(root: Path, **changes: Any) -> None:
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["train"] |= changes
    (root / "params.yaml").write_text(yaml.safe_dump(params))


def test_a_run_with_the_paged_optimizer_goes_on_after_a_kill(root: Path) -> None:
    checkpoint = root / "models/checkpoints/checkpoint-2"
    running = subprocess.Popen([sys.executable, "-m", "pipeline", "train", "--root", str(root)], cwd=PROJECT)
    while running.poll() is None and not (checkpoint / "complete.json").exists():
        pass
    running.kill()
    assert running.wait() == -signal.SIGKILL, "it was done before it was killed: more steps are needed"
    assert checkpoint.is_dir()
    assert main(["train", "--root", str(root)]) == 0
    report = json.loads((root / "reports/train.json").read_text())
    assert report["resumed_from"].startswith("checkpoint-")
    assert (report["steps"], report["loss"]) == (STEPS, "liger")


def test_the_8gb_recipe_peaks_at_7_gib(tmp_path: Path) -> None:
    """A random Qwen2.5-7B, rows of 1,024 tokens; needs 16 GB of disk."""
    from benchmarks.gpu_train import side
    from benchmarks.random_base import write_base, write_rows

    write_base(tmp_path / "base", "7b")
    write_rows(tmp_path / "rows", tmp_path / "base", 1_024)
    settings = Training.model_validate(RECIPE.model_dump() | {"max_steps": 4, "save_steps": 1_000, "sample_rows": 0})
    found = side("ours", tmp_path, settings, 8.0, tokens=1_024)
    assert found["peak_bytes"] <= 7.0 * 2**30
