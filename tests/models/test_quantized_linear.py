"""Quantized linears: answers and gradients of the dense linear with the same weights, by every type, with
LoRA on top; nothing dense is kept.
"""

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GgmlType
from heads import INPUTS, OUTPUTS, SCALES, random_rows
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from torch.utils.checkpoint import checkpoint

from pipeline.models import quantized_linear as linear
from pipeline.models.quantized_linear import QuantizedEmbedding, QuantizedLinear

IDS = [ggml_type.name for ggml_type in SCALES]
# relative errors allowed, of the largest value
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def reference(quantized: torch.Tensor, ggml_type: GgmlType) -> torch.Tensor:
    """The same rows as float32, by the package gguf."""
    values = gguf.dequantize(quantized.numpy(), ggml_type).astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(values))


def both(
    ggml_type: GgmlType, dtype: torch.dtype, bias: bool = True
) -> tuple[QuantizedLinear, torch.nn.Linear]:
    """A packed linear that computes in `dtype`, and a dense one in float32 with the same weights."""
    quantized = random_rows(ggml_type)
    plain = torch.nn.Linear(INPUTS, OUTPUTS, bias)
    plain.weight = torch.nn.Parameter(reference(quantized, ggml_type), requires_grad=False)
    ours = QuantizedLinear(quantized, int(ggml_type), plain.bias if bias else None, compute_dtype=dtype)
    return ours, plain


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference ÷ the largest value."""
    found, expected = found.detach().float(), expected.detach().float()
    return float((found - expected).abs().max() / expected.abs().max())


def run(module: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A module's answer and the gradient of its input, of a loss that weighs every answer differently."""
    x = x.clone().requires_grad_()
    y = module(x)
    (y.float() * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("ggml_type", list(SCALES), ids=IDS)
def test_answers_and_gradients_are_the_dense_linears(ggml_type: GgmlType, dtype: torch.dtype) -> None:
    quantized, plain = both(ggml_type, dtype)
    for shape in ((INPUTS,), (1, INPUTS), (3, 7, INPUTS), (2, 1, 5, INPUTS)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
        (ours, gradient), (theirs, expected) = run(quantized, x), run(plain, x.float())
        assert ours.dtype == gradient.dtype == dtype and ours.shape == theirs.shape
        assert error(ours, theirs) <= TOLERANCE[dtype] and error(gradient, expected) <= TOLERANCE[dtype]


@pytest.mark.parametrize(
    "ggml_type", [GgmlType.Q4_K, GgmlType.Q6_K, GgmlType.F16], ids=lambda ggml_type: ggml_type.name
)
def test_blocks_change_nothing(ggml_type: GgmlType, monkeypatch: pytest.MonkeyPatch) -> None:
    quantized, _ = both(ggml_type, torch.float32)
    x = torch.randn(5, INPUTS)
    whole = run(quantized, x)
    monkeypatch.setitem(linear.BLOCK_WEIGHTS, "cpu", 7 * INPUTS)  # 96 rows: thirteen blocks of 7 and one of 5
    pieces = run(quantized, x)
    assert torch.equal(quantized.rows(0, OUTPUTS), reference(quantized.weight, ggml_type))
    for ours, theirs in zip(pieces, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_an_empty_batch_is_an_empty_answer() -> None:
    quantized, plain = both(GgmlType.Q4_K, torch.float32)
    ours, gradient = run(quantized, torch.zeros(2, 0, INPUTS))
    assert ours.shape == plain(torch.zeros(2, 0, INPUTS)).shape and gradient.shape == (2, 0, INPUTS)


def test_it_answers_in_the_inputs_type_under_autocast_too() -> None:
    quantized, plain = both(GgmlType.Q5_K, torch.bfloat16)
    x = torch.randn(4, INPUTS)
    ours, gradient = run(quantized, x)
    with torch.autocast("cpu", torch.bfloat16):
        cast, _ = run(quantized, x)
    assert ours.dtype == gradient.dtype == cast.dtype == torch.float32 and torch.equal(ours, cast)
    assert error(ours, plain(x)) <= 1e-2


def test_checkpointing_gives_the_same_gradients() -> None:
    quantized, _ = both(GgmlType.Q4_K, torch.float32)
    x = torch.randn(4, INPUTS)
    plain = run(quantized, x)
    again = run(lambda given: checkpoint(quantized, given, use_reentrant=False), x)
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))


def test_nothing_dense_is_kept_for_the_backward() -> None:
    quantized, _ = both(GgmlType.Q4_K, torch.float32)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor
    ):
        quantized(torch.randn(4, INPUTS, requires_grad=True))
    assert {(one.dtype, one.data_ptr()) for one in kept} == {(torch.uint8, quantized.weight.data_ptr())}


def test_a_bias_that_trains_gets_its_gradient() -> None:
    quantized, plain = both(GgmlType.Q8_0, torch.float32)
    assert quantized.bias is not None and plain.bias is not None
    quantized.bias.requires_grad_(True)
    x = torch.randn(6, INPUTS)
    run(quantized, x), run(plain, x)
    torch.testing.assert_close(quantized.bias.grad, plain.bias.grad)


# --- with LoRA ----------------------------------------------------------------------------------------------


def adapted(ggml_type: GgmlType, dtype: torch.dtype = torch.float32) -> Any:
    """A linear with a LoRA on it."""
    linear = QuantizedLinear(random_rows(ggml_type), int(ggml_type), compute_dtype=dtype)
    return get_peft_model(torch.nn.Sequential(linear), LoraConfig(r=4, target_modules=["0"]))


def test_the_adapter_stays_float32_on_a_bfloat16_base() -> None:
    model = adapted(GgmlType.Q4_K, torch.bfloat16)
    assert {weight.dtype for name, weight in model.named_parameters() if "lora_" in name} == {torch.float32}
    assert isinstance(model.base_model.model[0], LoraLayer)
    assert model(torch.randn(2, INPUTS, dtype=torch.bfloat16)).dtype == torch.bfloat16
    model.to(torch.float16)  # a change of type is none of the quantized bytes'
    assert model.base_model.model[0].base_layer.weight.dtype == torch.uint8


@pytest.mark.parametrize("safe", [False, True])
def test_merging_into_bytes_is_refused(safe: bool) -> None:
    model = adapted(GgmlType.Q8_0)
    before = model.base_model.model[0].base_layer.weight.clone()
    with pytest.raises(RuntimeError):
        model.merge_adapter(safe_merge=safe)
    with pytest.raises(RuntimeError):
        model.merge_and_unload(safe_merge=safe)
    assert torch.equal(model.base_model.model[0].base_layer.weight, before)


# --- the embedding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ggml_type", list(SCALES), ids=IDS)
def test_an_embedding_dequantizes_the_rows_it_looks_up(ggml_type: GgmlType) -> None:
    quantized = random_rows(ggml_type)
    ids = torch.tensor([[0, 95, 3], [3, 3, 17]])
    found = QuantizedEmbedding(quantized, int(ggml_type), compute_dtype=torch.bfloat16)(ids)
    assert torch.equal(found, reference(quantized, ggml_type)[ids].to(torch.bfloat16))
    table = QuantizedEmbedding(quantized, int(ggml_type), compute_dtype=torch.float32)
    assert table(ids[:, :0]).shape == (2, 0, INPUTS)
