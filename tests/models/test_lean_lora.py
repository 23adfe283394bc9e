"""A LoRA branch with products in 16 bit gives the gradients that PEFT's gives, but for their rounding."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from gguf import GGMLQuantizationType as GgmlType
from heads import INPUTS, OUTPUTS, random_rows
from offloaded import tuned
from qlora import settings
from tensor_bytes import hidden_states, kept_bytes
from tiny import untied_qwen2

from pipeline.models.lean_lora import Adapted, draw_dropped
from pipeline.models.quantized_linear import QuantizedLinear

TOKENS = 48
# Shares of a tensor's length by which it may differ: a gradient after three layers in 16 bit, and the output
# or a gradient of one linear.
LIMIT = 0.1
OF_A_PRODUCT = 0.01


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untied_qwen2(tmp_path_factory.mktemp("lean"), layers=3)


def gradients(model: Any) -> list[torch.Tensor]:
    model.zero_grad()
    states = hidden_states(model, TOKENS).float()
    # The norm before it makes a sum of squares constant.
    (states * torch.linspace(-1, 1, states.numel()).view_as(states)).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.requires_grad]


@pytest.mark.parametrize(
    ("changed", "share"),
    [
        ({}, 0.8),
        ({"lora_dropout": 0.75}, 0.8),
        ({"quantization": "none"}, 0.8),
        ({"lora_variants": ["dora"], "lora_dropout": 0.0}, 0.8),
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
        assert mine.dtype == peft.dtype == torch.float32
        assert (mine - peft).norm() <= LIMIT * peft.norm()
    kept, before = (kept_bytes(one, lambda one=one: hidden_states(one, TOKENS)) for one in (lean, plain))
    assert kept == before if share == 1 else kept < share * before


def nf4() -> Any:
    linear = Linear4bit(INPUTS, OUTPUTS, compute_dtype=torch.bfloat16, quant_type="nf4")
    linear.weight.data = torch.randn(OUTPUTS, INPUTS, dtype=torch.bfloat16)
    return linear.to("cpu")


def dense() -> Any:
    return torch.nn.Linear(INPUTS, OUTPUTS, dtype=torch.bfloat16)


def in_blocks(grid: tuple[int, int] | None = None) -> Any:
    rows = random_rows(GgmlType.Q8_0)
    bias = torch.randn(OUTPUTS)
    return QuantizedLinear(rows, int(GgmlType.Q8_0), bias, compute_dtype=torch.bfloat16, grid=grid)


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize(
    "make", [nf4, dense, in_blocks, partial(in_blocks, (2, 4))], ids=["NF4", "16 bit", "GGUF", "GGUF's order"]
)
def test_a_linear_s_figures_are_those_of_float32(make: Callable[[], Any], share: float) -> None:
    torch.manual_seed(1)
    linear = make().requires_grad_(False)
    x = torch.randn(2, 10, INPUTS, dtype=torch.bfloat16, requires_grad=True)
    a = torch.randn(4, INPUTS, requires_grad=True)
    b = torch.randn(OUTPUTS, 4, requires_grad=True)

    def figures(output: torch.Tensor) -> list[torch.Tensor]:
        upstream = torch.linspace(-1, 1, output.numel()).view_as(output).bfloat16()
        return [output, *torch.autograd.grad(output, (x, a, b), upstream)]

    torch.manual_seed(4)
    ours = figures(Adapted.apply(x, a, b, linear, 2.0, share))  # type: ignore[no-untyped-call]
    torch.manual_seed(4)
    dropped = draw_dropped(x.flatten(0, 1), share).view_as(x)
    adapted = x.float().masked_fill(dropped, 0) / (1 - share) @ a.t() @ b.t() * 2
    theirs = figures(linear(x) + adapted.bfloat16())
    for mine, exact in zip(ours, theirs, strict=True):
        assert mine.dtype == exact.dtype
        assert (mine - exact).norm() < OF_A_PRODUCT * exact.norm()


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_dropout_drops_its_share_and_other_features_each_time(share: float) -> None:
    torch.manual_seed(3)
    first, second = (draw_dropped(torch.empty(1023, 1001), share) for _ in range(2))
    for mask, expected in ((first, share), (second, share), (first & second, share * share)):
        assert abs(mask.float().mean().item() - expected) < 5 * (expected / mask.numel()) ** 0.5
    torch.manual_seed(3)
    assert torch.equal(draw_dropped(torch.empty(1023, 1001), share), first)
