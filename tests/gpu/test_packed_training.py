"""On a GPU: a step on a GGUF's own blocks gives float32's gradients of the CPU, a killed run goes on, and the 8 GB recipe's peak fits."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import yaml
from conftest import run_stages

from pipeline.__main__ import main
from pipeline.fidelity.finite import finite_record
from pipeline.params import load_params

pytestmark = pytest.mark.gpu

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))
RECIPE = load_params(PROJECT / "recipes" / "qwen2.5-7b-gguf-8gb.yaml").training
STEPS = 40  # enough to be killed in the midst of


def gradients(base: Path, device: str, dtype: str) -> dict[str, torch.Tensor]:
    """The gradients of one row's loss by the adapter's matrices that the first step changes, of the recipe's adapter without dropout."""
    from peft import get_peft_model

    from pipeline.training.chunked import chunked_loss
    from pipeline.training.qlora import check_adapter, load_quantised, lora_config

    train = RECIPE.model_copy(update={"bnb_4bit_compute_dtype": dtype, "lora_dropout": 0.0, "embeddings_on_cpu": False})
    torch.manual_seed(0)
    model = get_peft_model(load_quantised(base, train, device), lora_config(train))
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if "lora_A" in name:  # drawn on the CPU: a GPU draws others
            weight.data.copy_(torch.randn(weight.shape) / weight.shape[1] ** 0.5)
    model = model.to(device).train()
    assert check_adapter(model, train) > 0
    assert finite_record(model) == {"nf4_linears_finite": 0, "packed_tensors_finite": 16, "adapter_matrices_finite": 28}
    ids = torch.arange(64, device=device)[None] * 7 % 512
    with torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda" and dtype == "bfloat16"):
        loss = chunked_loss(model.get_base_model(), {"input_ids": ids, "labels": ids})
    loss.backward()
    assert loss.isfinite()
    return {name: weight.grad.float().cpu() for name, weight in model.named_parameters() if "lora_B" in name and weight.grad is not None}


@pytest.mark.parametrize(("dtype", "off"), [("float32", 1e-3), ("bfloat16", 0.1)])
def test_the_gradients_are_those_of_float32_on_the_cpu(dtype: str, off: float, tmp_path: Path) -> None:
    from benchmarks.random_gguf import write_random_gguf

    base = write_random_gguf(tmp_path / "base", "blocks")
    ours, theirs = gradients(base, "cuda", dtype), gradients(base, "cpu", "float32")
    assert len(ours) == len(theirs) == 14
    for name, wanted in theirs.items():
        assert torch.linalg.vector_norm(ours[name] - wanted) <= off * torch.linalg.vector_norm(wanted), name


def test_a_run_on_packed_weights_goes_on_after_a_kill(tiny_gguf_base: Path, tmp_path: Path) -> None:
    root = tiny.write_project(tmp_path / "project", packed(tiny_gguf_base))
    run_stages(root, ("base", "curate", "preprocess"))
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


def packed(gguf: Path) -> dict[str, Any]:
    """The tiny project's params.yaml with what the 8 GB recipe trains with."""
    recipe = yaml.safe_load((PROJECT / "recipes/qwen2.5-7b-gguf-8gb.yaml").read_text())["train"]
    params = tiny.packed_params(gguf)
    params["train"] |= {name: recipe[name] for name in ("bnb_4bit_compute_dtype", "optim", "gradient_checkpointing", "loss")}
    params["train"] |= {"max_steps": STEPS, "save_steps": 2}
    return params


def test_the_8gb_recipe_peaks_at_7_gib(tmp_path: Path) -> None:
    """A random Qwen2.5-7B with Q4_K_M's types, a row of 1,024 tokens; needs 5 GB of disk."""
    from benchmarks.gguf_sides import peak
    from benchmarks.random_gguf import write_random_gguf

    found = peak(write_random_gguf(tmp_path / "base", "7b"), RECIPE, 1_024)
    assert found["peak"] <= 7.0 * 2**30
