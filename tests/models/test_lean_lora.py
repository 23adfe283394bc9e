"""A LoRA branch that keeps its input in 16 bit gives the gradients that PEFT's gives, to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tensor_bytes import hidden_states, kept_bytes
from test_qlora import settings
from tiny import untied_qwen2

from pipeline.models.qlora import load_quantized
from pipeline.models.tuners import put_tuner

TOKENS = 48


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untied_qwen2(tmp_path_factory.mktemp("lean"), layers=3)


def tuned(base: Path, **changed: Any) -> Any:
    recipe = settings(bnb_4bit_compute_dtype="bfloat16", **changed)
    torch.manual_seed(1)
    model = put_tuner(load_quantized(base, recipe), recipe).train()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return model


def gradients(model: Any) -> list[torch.Tensor]:
    model.zero_grad()
    hidden_states(model, TOKENS).float().pow(2).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.requires_grad]


@pytest.mark.parametrize(
    ("changed", "share"),
    [
        ({}, 0.8),
        ({"lora_dropout": 0.1}, 0.6),
        ({"quantization": "none"}, 1),
        ({"use_dora": True, "lora_dropout": 0.1}, 1),
    ],
)
def test_gradients_are_those_of_peft_and_less_is_kept(
    base: Path, changed: dict[str, Any], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    lean = tuned(base, **changed)
    monkeypatch.setattr("pipeline.models.lean_lora.lighten", lambda model: None)
    plain = tuned(base, **changed)
    torch.manual_seed(2)
    ours = gradients(lean)
    torch.manual_seed(2)
    theirs = gradients(plain)
    assert all(map(torch.equal, ours, theirs)) and len(ours) == len(theirs)
    kept, before = (kept_bytes(one, lambda one=one: hidden_states(one, TOKENS)) for one in (lean, plain))
    assert kept == before if share == 1 else kept < share * before
