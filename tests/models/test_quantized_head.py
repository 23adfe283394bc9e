"""A quantized head's loss: chunked_loss's number and gradients on the same weights dense, whatever is
trained, by blocks of any size.
"""

from typing import Any

import pytest
import torch
from draws import draws
from gguf import GGMLQuantizationType as GgmlType
from heads import HIDDEN, LOGIT_RULES, VOCABULARY, Sizes, all_trained, models
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.models import quantized_head as head
from pipeline.models.chunked_loss import ChunkedLoss, chunked_loss
from pipeline.models.loss_parts import trained_states


def plain_loss(model: Any, inputs: dict[str, Any], tokens: Any = None) -> Any:
    """chunked_loss's own way, whatever kind of head it is."""
    states, targets = trained_states(model, inputs)
    count = max(len(targets), 1) if tokens is None else tokens
    return ChunkedLoss.apply(states, targets, model, count, torch.is_grad_enabled())


def compare(
    ours: Any, theirs: Any, labels: torch.Tensor, tokens: Any = None, tolerance: float = 1e-5
) -> None:
    """Both losses and both gradients are the same."""
    value = chunked_loss(ours, {"labels": labels}, tokens)
    expected = plain_loss(theirs, {"labels": labels}, tokens)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(expected.item(), rel=tolerance, abs=1e-7)
    (value * 3).backward(), (expected * 3).backward()
    largest = max(float(theirs.states.grad.float().abs().max()), 1e-12)
    torch.testing.assert_close(
        ours.states.grad.float(), theirs.states.grad.float(), rtol=tolerance, atol=tolerance * largest
    )


@settings(max_examples=draws(25))
@given(
    trained=st.lists(st.booleans(), min_size=24, max_size=24),
    block=st.integers(1, 100),
    tokens=st.sampled_from([None, 17]),
)
def test_value_and_gradients_are_chunked_losss(trained: list[bool], block: int, tokens: int | None) -> None:
    labels = torch.where(torch.tensor(trained).reshape(2, 12), all_trained(), -100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "BLOCK_HEAD", block * HIDDEN)
        compare(*models(), labels, tokens)


@pytest.mark.parametrize("config", LOGIT_RULES)
@pytest.mark.parametrize("bias", [False, True])
def test_factor_softcap_and_bias_are_honored(
    config: dict[str, Any], bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "BLOCK_HEAD", 10 * HIDDEN)
    compare(*models(bias=bias, scale=4.0, **config), all_trained())


@pytest.mark.parametrize(
    "ggml_type",
    [GgmlType.Q8_0, GgmlType.Q6_K, GgmlType.Q4_1, GgmlType.F16],
    ids=lambda ggml_type: ggml_type.name,
)
def test_any_type_of_head(ggml_type: GgmlType) -> None:
    compare(*models(ggml_type), all_trained())


def test_bfloat16_is_as_close_as_bfloat16_is() -> None:
    compare(*models(dtype=torch.bfloat16), all_trained(), tolerance=1e-2)


@pytest.mark.parametrize("quantized", [True, False])
def test_a_gradient_below_float16_waits_for_the_loss_scale_in_float32(quantized: bool) -> None:
    """Divided by the tokens of a step, before the scaler's 65,536."""
    tokens, scale = 40_000_000, 65_536.0
    found, exact = (models(dtype=dtype)[not quantized] for dtype in (torch.float16, torch.float32))
    for model in (found, exact):
        loss = chunked_loss if quantized else plain_loss
        (loss(model, {"labels": all_trained()}, tokens) * scale).backward()
    exact_gradient = exact.states.grad
    largest = float(exact_gradient.abs().max())
    assert found.states.grad.dtype == torch.float16 and largest / scale < 6e-8
    torch.testing.assert_close(found.states.grad.float(), exact_gradient, rtol=2e-2, atol=2e-2 * largest)


def test_of_a_token_that_it_is_sure_of_the_gradient_is_not_lost_in_rounding() -> None:
    ours, theirs = models(dtype=torch.bfloat16)
    exact, _ = models()
    labels = all_trained()
    # (V, H): a logit of 1 for its token, of 0 for the others
    towards = torch.linalg.pinv(exact.lm_head.rows(0, VOCABULARY)).T
    sure = (12 * towards)[labels.roll(-1, 1)].bfloat16()  # softmax of the target about 0.999
    for model in (ours, theirs, exact):
        model.states.data.copy_(sure)
    for model in (ours, exact):
        chunked_loss(model, {"labels": labels}).backward()
    plain_loss(theirs, {"labels": labels}).backward()
    wanted = exact.states.grad
    off, usual = (
        float((model.states.grad.float() - wanted).norm() / wanted.norm()) for model in (ours, theirs)
    )
    assert off <= 1.2 * usual


def test_nothing_as_large_as_the_logits_or_the_head_is_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = models(GgmlType.F32)  # its quantized bytes are few operations, each of a block
    monkeypatch.setattr(head, "BLOCK_HEAD", 4 * HIDDEN)
    with Sizes() as seen:
        chunked_loss(ours, {"labels": all_trained()}).backward()
    assert max(seen.sizes) < VOCABULARY * HIDDEN and 22 * VOCABULARY not in seen.sizes


def test_without_gradients_none_are_made() -> None:
    ours, theirs = models()
    inputs = {"labels": all_trained()}
    with torch.no_grad():
        value, expected = chunked_loss(ours, inputs), plain_loss(theirs, inputs)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5) and not value.requires_grad
