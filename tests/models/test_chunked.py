"""chunked: the loss and its gradients are plain cross entropy's, whatever is trained; logits are never whole;
odd heads are honored or refused.
"""

from typing import Any

import pytest
import torch
from draws import draws
from heads import Sizes, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import ToolError
from pipeline.models import chunked_loss as chunked
from pipeline.models.chunked_loss import check_head, chunked_loss


def both(model: Any, labels: torch.Tensor, tokens: int) -> list[tuple[float, torch.Tensor]]:
    """Loss and the first layer's q_proj gradient, ours and by the model's whole logits."""

    def plain() -> Any:
        logits = model(input_ids=inputs["input_ids"], use_cache=False).logits.float()
        flat = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        return torch.nn.functional.cross_entropy(*flat, reduction="sum") / tokens

    inputs = {"input_ids": torch.arange(labels.numel()).reshape(labels.shape) % 96, "labels": labels}
    found = []
    for loss in (chunked_loss(model, inputs, tokens), plain()):
        model.zero_grad()
        loss.backward()
        found.append((loss.item(), model.model.layers[0].self_attn.q_proj.weight.grad.clone()))
    return found


@pytest.fixture(scope="module")
def qwen() -> Any:
    return tiny("qwen2", tie_word_embeddings=False)


@settings(max_examples=draws(25))
@given(trained=st.lists(st.booleans(), min_size=24, max_size=24), chunk=st.integers(1, 20))
def test_loss_and_gradients_are_plain_cross_entropys(qwen: Any, trained: list[bool], chunk: int) -> None:
    labels = torch.where(torch.tensor(trained), torch.arange(24) * 5 % 96, -100).reshape(2, 12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "CHUNK_LOGITS", chunk * 96)
        (ours, gradient), (theirs, expected) = both(qwen, labels, tokens=17)
    assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-7)
    largest = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("gemma2", {"final_logit_softcapping": 3.0}),
        ("granite", {"logits_scaling": 8.0}),
        ("cohere", {"logit_scale": 0.25}),
        ("llama", {}),
        ("qwen3", {}),
    ],
)
def test_scaled_and_capped_logits_are_honored(model_type: str, changes: dict[str, Any]) -> None:
    model = tiny(model_type, **changes)
    check_head(model)
    (ours, gradient), (theirs, expected) = both(model, torch.arange(24).reshape(2, 12), tokens=22)
    assert ours == pytest.approx(theirs, rel=1e-5)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


def test_a_head_it_does_not_know_is_refused() -> None:
    """HyperCLOVA X multiplies by the very key that Granite divides by."""
    with pytest.raises(ToolError, match="Q-MODELS-009"):
        check_head(tiny("hyperclovax", logits_scaling=8.0))


def test_a_head_that_is_trained_is_refused(qwen: Any) -> None:
    qwen.lm_head.requires_grad_(True)
    try:
        with pytest.raises(ToolError, match="Q-MODELS-007"):
            check_head(qwen)
    finally:
        qwen.lm_head.requires_grad_(False)


def test_the_softmax_of_a_bfloat16_model_is_in_float32(qwen: Any) -> None:
    half = tiny("qwen2", tie_word_embeddings=False).to(torch.bfloat16)
    labels = torch.arange(24).reshape(2, 12)
    (ours, gradient), (theirs, expected) = both(half, labels, tokens=22)
    assert ours == pytest.approx(theirs, rel=1e-5)
    # bfloat16's own step is 0.8 %
    torch.testing.assert_close(gradient, expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))


def test_logits_are_never_whole(qwen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "CHUNK_LOGITS", 16 * 96)
    states, targets = torch.randn(400, 32, requires_grad=True), torch.arange(400) % 96
    with Sizes() as seen:
        chunked.ChunkedLoss.apply(states, targets, qwen, 400, True).backward()
    assert 16 * 96 <= max(seen.sizes) <= 400 * 32 < 400 * 96  # the states themselves are the largest


def test_without_gradients_none_are_made(qwen: Any) -> None:
    with torch.no_grad():
        loss = chunked_loss(qwen, {"input_ids": torch.arange(12)[None], "labels": torch.arange(12)[None]})
    assert not loss.requires_grad
    assert loss.isfinite()
