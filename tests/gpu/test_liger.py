"""Liger's fused loss is plain cross entropy: on a GPU with the real kernels, elsewhere in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROJECT = Path(__file__).resolve().parents[2]

CHECK = """
import sys
import torch
from types import SimpleNamespace
from pipeline.training.qlora import fused_loss

device = sys.argv[1]
torch.manual_seed(0)
hidden, vocabulary, tokens = 32, 160, 24
head = torch.nn.Linear(hidden, vocabulary, bias=False).to(device)
states = torch.randn(1, tokens, hidden, device=device, requires_grad=True)
labels = torch.randint(0, vocabulary, (1, tokens), device=device)
labels[0, :7] = -100
model = SimpleNamespace(model=lambda **inputs: (states,), lm_head=head)

fused = fused_loss(model, {"input_ids": labels, "labels": labels}, tokens=17)
fused.backward()
gradient, states.grad = states.grad.clone(), None
plain = torch.nn.functional.cross_entropy(head(states[:, :-1]).flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum") / 17
plain.backward()
assert abs(fused.item() - plain.item()) < 1e-4 * plain.item(), (fused.item(), plain.item())
assert torch.allclose(gradient, states.grad, atol=1e-5), (gradient - states.grad).abs().max()
print("equal", fused.item(), plain.item())
"""


def run(device: str, **environment: str) -> None:
    command = [sys.executable, "-c", CHECK, device]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, env=os.environ | environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("equal")


def test_the_fused_loss_is_cross_entropy_in_tritons_interpreter() -> None:
    run("cpu", TRITON_INTERPRET="1")


@pytest.mark.gpu
def test_the_fused_loss_is_cross_entropy_on_a_gpu() -> None:
    run("cuda")


@pytest.mark.gpu
def test_the_demo_trains_with_liger_on_a_gpu(prepared: Path, tmp_path: Path) -> None:
    import shutil

    import yaml

    from pipeline.__main__ import main

    root = Path(shutil.copytree(prepared, tmp_path / "project"))
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["train"] |= {"loss": "liger", "optim": "paged_adamw_8bit", "gradient_checkpointing": True}
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    assert torch.cuda.is_available()
    assert main(["train", "--root", str(root)]) == 0
