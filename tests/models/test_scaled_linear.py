"""Linears whose block scales train: the file's answers at first, float64's gradients, codes untouched."""

from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GgmlType

from pipeline.core.errors import DataError
from pipeline.gguf.scales import changed_scales, stored_scales, with_scales
from pipeline.gguf.tensors import SCALES
from pipeline.models import quantized_linear
from pipeline.models.quantized_linear import QuantizedLinear
from pipeline.models.tuners import tuner_on
from pipeline.models.tuners.scaled_linear import ScaledLinear, put_scales, rescaled

INPUTS, OUTPUTS = 512, 48
FLOAT16 = torch.finfo(torch.float16)
TYPES = [GgmlType(number) for number in SCALES]
every_type = pytest.mark.parametrize("ggml_type", TYPES, ids=lambda one: one.name)


def random_rows(ggml_type: GgmlType, rows: int = OUTPUTS, columns: int = INPUTS) -> torch.Tensor:
    """Random bytes (rows, row_bytes) with scales of about ±1e-3, none subnormal."""
    random = np.random.default_rng(int(ggml_type))
    block, size = gguf.GGML_QUANT_SIZES[ggml_type]
    quantized = random.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    for place in SCALES[int(ggml_type)]:
        values = random.uniform(2e-4, 2e-3, (*quantized.shape[:2], 1)) * random.choice((-1, 1), (rows, 1, 1))
        quantized[..., place : place + 2] = values.astype(np.float16).view(np.uint8)
    return torch.from_numpy(quantized.reshape(rows, -1))


def scaled(ggml_type: GgmlType, change: float = 0.05, dtype: torch.dtype = torch.float32) -> ScaledLinear:
    """A linear with a bias whose scales are changed at random by about `change`."""
    torch.manual_seed(int(ggml_type))
    bias = torch.randn(OUTPUTS)
    made = ScaledLinear(QuantizedLinear(random_rows(ggml_type), int(ggml_type), bias, compute_dtype=dtype))
    torch.nn.init.normal_(made.change, std=change)
    return made


def by_library(quantized: torch.Tensor, ggml_type: GgmlType) -> torch.Tensor:
    """The weights by the package gguf, float64."""
    return torch.from_numpy(gguf.dequantize(quantized.numpy(), ggml_type).astype(np.float64))


def in_float64(linear: ScaledLinear, ggml_type: GgmlType, scales: torch.Tensor) -> torch.Tensor:
    """The weights as the sum of the scales (float64, shaped as the changes) times what the codes give."""
    total = torch.zeros(OUTPUTS, INPUTS, dtype=torch.float64)
    for number, values in enumerate(scales):
        unit = torch.zeros_like(linear.change, dtype=torch.float16)
        unit[number] = 1
        codes = by_library(with_scales(linear.weight, int(ggml_type), unit), ggml_type)
        total = total + codes * values.repeat_interleave(INPUTS // values.shape[1], 1)
    return total


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference ÷ the norm."""
    return float((found.double() - expected).norm() / expected.norm())


@every_type
def test_the_start_is_the_files_own_answer(ggml_type: GgmlType) -> None:
    linear = scaled(ggml_type, 0.0)
    plain = QuantizedLinear(linear.weight, int(ggml_type), linear.bias, compute_dtype=torch.float32)
    x = torch.randn(3, 5, INPUTS)
    assert torch.equal(linear(x), plain(x))
    assert torch.equal(rescaled(linear.weight, int(ggml_type), linear.change), linear.weight)


@every_type
def test_gradients_are_those_of_dense_weights_in_float64(ggml_type: GgmlType) -> None:
    linear = scaled(ggml_type)
    x, above = torch.randn(7, INPUTS), torch.randn(7, OUTPUTS)
    ours_x = x.clone().requires_grad_()
    (linear(ours_x) * above).sum().backward()
    stored = stored_scales(linear.weight, int(ggml_type))
    # straight through: the derivative is taken at the rounded scales
    rounded = changed_scales(stored, linear.change.detach()).double()
    change = linear.change.detach().double().requires_grad_()
    exact = stored.double() * (1 + change)
    weights = in_float64(linear, ggml_type, exact + (rounded - exact).detach())
    exact_x = x.double().requires_grad_()
    assert linear.bias is not None
    answer = exact_x @ weights.T + linear.bias.double()
    (answer * above.double()).sum().backward()
    assert error(linear(x).detach(), answer.detach()) < 1e-6
    assert ours_x.grad is not None and exact_x.grad is not None and error(ours_x.grad, exact_x.grad) < 1e-6
    assert linear.change.grad is not None and change.grad is not None
    for ours, expected in zip(linear.change.grad, change.grad, strict=True):  # scales and minima each
        assert float(expected.norm()) > 0
        assert error(ours, expected) < 1e-5


@every_type
def test_the_tuned_bytes_differ_in_scales_alone_and_are_what_was_computed_with(ggml_type: GgmlType) -> None:
    linear = scaled(ggml_type)
    tuned = linear.tuned()
    x = torch.randn(4, INPUTS)
    assert torch.equal(tuned(x), linear(x))
    size = gguf.GGML_QUANT_SIZES[ggml_type][1]
    before, after = (one.weight.view(OUTPUTS, -1, size) for one in (linear, tuned))
    differing = {int(place) for place in (before != after).any(0).any(0).nonzero()[:, 0]}
    assert differing and differing <= {at + byte for at in SCALES[int(ggml_type)] for byte in (0, 1)}
    expected = changed_scales(stored_scales(linear.weight, int(ggml_type)), linear.change.detach())
    weights = by_library(tuned.weight, ggml_type)
    assert torch.equal(weights, by_library(with_scales(linear.weight, int(ggml_type), expected), ggml_type))
    assert torch.equal(weights, tuned.rows(0, OUTPUTS).double())


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[torch.Tensor]:
        linear, x = scaled(GgmlType.Q4_K), torch.linspace(-1, 1, 5 * INPUTS).view(5, INPUTS).requires_grad_()
        y = linear(x)
        (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
        assert x.grad is not None and linear.change.grad is not None
        return [y.detach(), x.grad, linear.change.grad]

    whole = run()
    monkeypatch.setitem(quantized_linear.BLOCK_WEIGHTS, "cpu", 7 * INPUTS)
    for one, other in zip(whole, run(), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("change", [-5.0, -1.0, -0.999, 0.0, 1e3, 1e9])
def test_a_scale_keeps_its_sign_and_stays_a_number(change: float) -> None:
    stored = torch.tensor([1.0, -1.0, 2e-3, -FLOAT16.smallest_normal, 3e-6, -3e-6, 6e-8, 0.0, -0.0]).half()
    found = changed_scales(stored, torch.full((len(stored),), change))
    assert torch.equal(torch.signbit(found), torch.signbit(stored))
    sizes = found.float().abs()
    assert bool((sizes <= FLOAT16.max).all())
    assert bool((sizes >= (stored.float().abs() / 2).half().float().clamp(max=FLOAT16.smallest_normal)).all())
    assert torch.equal(found == 0, stored == 0)


@pytest.mark.parametrize("size", [1.5e-5, FLOAT16.smallest_normal, 1.0])
def test_a_scale_can_fall_as_well_as_grow(size: float) -> None:
    """Also where the file has one below float16's normal numbers, as a 7B's Q6_K does."""
    stored = torch.tensor([size]).half()
    for change in (-0.3, -0.05, 0.05, 0.3):
        found = changed_scales(stored, torch.tensor([change])).float() / stored.float()
        assert found.item() == pytest.approx(1 + change, abs=0.003)


def test_a_change_that_is_no_number_is_not_hidden() -> None:
    assert not changed_scales(torch.ones(1).half(), torch.tensor([torch.nan])).isfinite().any()


def test_scales_learn_in_bfloat16_too() -> None:
    linear = scaled(GgmlType.Q4_0, 0.0, torch.bfloat16)
    wanted = scaled(GgmlType.Q4_0, 0.05).tuned()
    x = torch.randn(256, INPUTS)
    optimizer = torch.optim.AdamW(linear.parameters(), lr=1e-2, weight_decay=0)
    losses = []
    for _ in range(60):
        loss = (linear(x) - wanted(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 10


def test_the_sum_over_tokens_does_not_overflow_in_float16() -> None:
    linear = scaled(GgmlType.Q4_0, 0.0, torch.float16)
    linear(torch.full((64, INPUTS), 60.0, dtype=torch.float16)).backward(
        torch.full((64, OUTPUTS), 60.0, dtype=torch.float16)
    )  # 64 · 60 · 60 is beyond 65,504
    assert linear.change.grad is not None and linear.change.grad.isfinite().all()


def test_only_the_layers_linears_that_are_named_get_scales() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("q_proj", "o_proj"):
                weight = random_rows(GgmlType.Q8_0)
                setattr(self, name, QuantizedLinear(weight, 8, compute_dtype=torch.float32))

    model: Any = torch.nn.Module()
    model.layers = torch.nn.ModuleList([Layer(), Layer()])
    model.lm_head = QuantizedLinear(random_rows(GgmlType.Q8_0), 8, compute_dtype=torch.float32)
    outer = torch.nn.Module()
    outer.model = model
    made = put_scales(outer, lambda path: path.endswith("q_proj"))
    assert list(made) == ["model.layers.0.q_proj", "model.layers.1.q_proj"]
    training = [name for name, one in outer.named_parameters() if one.requires_grad]
    assert training == [f"{name}.change" for name in made]


def test_without_what_was_trained_the_file_answers_and_then_it_is_back() -> None:
    linear, given = scaled(GgmlType.Q4_0), torch.randn(3, INPUTS)
    model = torch.nn.Sequential(linear)
    trained = model(given)
    with tuner_on(model).without(model):
        file = QuantizedLinear(linear.weight, linear.ggml_type, linear.bias, compute_dtype=torch.float32)
        assert torch.equal(model(given), file(given)) and not torch.equal(model(given), trained)
    assert torch.equal(model(given), trained)


def test_a_type_without_scales_is_refused() -> None:
    values = torch.zeros(4, 64, dtype=torch.float16).view(torch.uint8)
    with pytest.raises(DataError, match="Q-GGUF-015:"):
        ScaledLinear(QuantizedLinear(values, 1, compute_dtype=torch.float32))
