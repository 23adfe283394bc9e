"""A LoRA branch that keeps its input in 16 bit gives the gradients that PEFT's gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from offloaded import tuned
from qlora import settings
from tensor_bytes import hidden_states, kept_bytes
from tiny import untied_qwen2

from pipeline.models.lean_lora import draw_dropped

TOKENS = 48


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untied_qwen2(tmp_path_factory.mktemp("lean"), layers=3)


def gradients(model: Any) -> list[torch.Tensor]:
    model.zero_grad()
    hidden_states(model, TOKENS).float().pow(2).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.requires_grad]


@pytest.mark.parametrize(
    ("changed", "share"),
    [
        ({}, 0.8),
        # PEFT divides by 1 - p before A, here it is done after: with a quarter neither rounds
        ({"lora_dropout": 0.75}, 0.8),
        ({"quantization": "none"}, 1),
        ({"lora_variants": ["dora"], "lora_dropout": 0.1}, 1),
    ],
)
def test_gradients_are_those_of_peft_and_less_is_kept(
    base: Path, changed: dict[str, Any], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dropped(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(draw_dropped(x, self.p), 0) / (1 - self.p) if self.training else x

    monkeypatch.setattr("torch.nn.Dropout.forward", dropped)  # the same draw for both
    recipe = settings(bnb_4bit_compute_dtype="bfloat16", **changed)
    lean = tuned(base, recipe).train()
    monkeypatch.setattr("pipeline.models.lean_lora.lighten", lambda model: None)
    plain = tuned(base, recipe).train()
    torch.manual_seed(2)
    ours = gradients(lean)
    torch.manual_seed(2)
    theirs = gradients(plain)
    assert len(ours) == len(theirs)
    for mine, peft in zip(ours, theirs, strict=True):
        assert torch.equal(mine, peft)
    kept, before = (kept_bytes(one, lambda one=one: hidden_states(one, TOKENS)) for one in (lean, plain))
    assert kept == before if share == 1 else kept < share * before


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_dropout_drops_its_share_and_other_features_each_time(share: float) -> None:
    torch.manual_seed(3)
    first, second = (draw_dropped(torch.empty(1023, 1001), share) for _ in range(2))
    for mask, expected in ((first, share), (second, share), (first & second, share * share)):
        assert abs(mask.float().mean().item() - expected) < 5 * (expected / mask.numel()) ** 0.5
    torch.manual_seed(3)
    assert torch.equal(draw_dropped(torch.empty(1023, 1001), share), first)
