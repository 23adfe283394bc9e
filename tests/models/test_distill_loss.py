"""The loss of distillation: the formula's value and gradient in float64 on a dense head, whatever the head is
and by blocks of any size.
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
from pipeline.models.chunked_loss import chunked_loss
from pipeline.models.distill_loss import distill_loss, followed
from pipeline.models.loss_parts import logit_rule
from pipeline.stages.train.distill.teacher import top_k_logprobs

# two rows in each: of 24 tokens 20 are followed by one of their row
POSITIONS = torch.tensor([[*range(7), *range(5)], [*range(3), *range(9)]])


def taught(model: Any, top_k: int, spread: float = 0.5) -> dict[str, Any]:
    """A batch with the answers of a teacher whose states are the model's and noise of `spread`."""
    noise = torch.randn(model.states.shape, generator=torch.Generator().manual_seed(1))
    states = (model.states.detach() + spread * noise)[:, :-1][followed(POSITIONS)]
    ids, logs = top_k_logprobs(states, model, top_k)
    stored = torch.from_numpy(logs.numpy().astype("<f2"))
    teacher = {"teacher_ids": ids.int(), "teacher_logs": stored}
    return {"labels": all_trained(), "position_ids": POSITIONS} | teacher


def formula(
    model: Any, batch: dict[str, Any], sft_weight: float, positions: int, answered: int
) -> tuple[float, Any]:
    """The loss and the gradient of the states in float64, with every logit there is."""
    states = model.states.detach().double().requires_grad_()
    weight = model.lm_head.rows(0, VOCABULARY) if hasattr(model.lm_head, "rows") else model.lm_head.weight
    factor, softcap = logit_rule(model.config)
    bias = None if model.lm_head.bias is None else model.lm_head.bias.double()
    logits = factor * torch.nn.functional.linear(states[:, :-1], weight.double(), bias)
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    chances = logits[followed(POSITIONS)].softmax(1)  # (P, V)
    theirs = batch["teacher_logs"].double().log_softmax(1).exp()
    taught = batch["teacher_ids"].long()
    others = torch.ones_like(chances).scatter(1, taught, 0.0) * chances
    ours = torch.cat([chances.gather(1, taught), others.sum(1, keepdim=True)], 1)
    logs = (theirs.clamp(min=1e-300) / ours.clamp(min=1e-300)).log()
    divergence = torch.where(theirs > 0, theirs * logs, 0.0).sum()
    flat = logits.flatten(0, 1), batch["labels"][:, 1:].flatten()
    entropy = torch.nn.functional.cross_entropy(*flat, reduction="sum")
    loss = (1 - sft_weight) * divergence / positions + sft_weight * entropy / answered
    loss.backward()
    return loss.item(), states.grad


def compare(model: Any, batch: dict[str, Any], sft_weight: float = 0.0, tolerance: float = 1e-5) -> None:
    """`distill_loss` is the formula."""
    value = distill_loss(model, batch, sft_weight, 17, 13)
    expected, gradient = formula(model, batch, sft_weight, 17, 13)
    assert value.dtype == torch.float32 and value.item() == pytest.approx(expected, rel=tolerance, abs=1e-7)
    (value * 3).backward()
    found, largest = model.states.grad.double() / 3, float(gradient.abs().max())
    torch.testing.assert_close(found, gradient, rtol=tolerance, atol=tolerance * largest)


@settings(max_examples=draws(25))
@given(
    top_k=st.integers(1, VOCABULARY),
    block=st.integers(1, 100),
    sft_weight=st.sampled_from([0.0, 0.3]),
    quantized=st.booleans(),
)
def test_value_and_gradients_are_the_formulas(
    top_k: int, block: int, sft_weight: float, quantized: bool
) -> None:
    model = models()[0 if quantized else 1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "BLOCK_HEAD", block * HIDDEN)
        patch.setattr("pipeline.models.distill_loss.BLOCK_HEAD", block * HIDDEN)
        compare(model, taught(model, top_k), sft_weight)


@pytest.mark.parametrize("config", LOGIT_RULES)
@pytest.mark.parametrize("bias", [False, True])
def test_factor_softcap_and_bias_are_honored(
    config: dict[str, Any], bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "BLOCK_HEAD", 10 * HIDDEN)
    model = models(bias=bias, scale=4.0, **config)[0]
    compare(model, taught(model, 8), 0.3)


def test_bfloat16_is_as_close_as_bfloat16_is() -> None:
    model = models(dtype=torch.bfloat16)[0]
    compare(model, taught(model, 8), tolerance=2e-2)


@pytest.mark.parametrize("top_k", [1, 8, VOCABULARY])
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_of_a_model_with_itself_it_is_nothing(top_k: int, scale: float) -> None:
    model = models(GgmlType.Q8_0, scale=scale)[0]
    itself, other = taught(model, top_k, spread=0.0), taught(model, top_k, spread=0.5)
    loss = distill_loss(model, itself, 0.0, 20, 1)
    loss.backward()
    assert abs(loss.item()) < 1e-6 < 1e-3 * distill_loss(model, other, 0.0, 20, 1).item()
    assert float(model.states.grad.abs().max()) < 1e-3


@pytest.mark.parametrize("quantized", [True, False])
def test_with_a_weight_of_one_it_is_the_usual_loss(quantized: bool) -> None:
    ours, theirs = (models()[0 if quantized else 1] for _ in range(2))
    labels = torch.where(torch.arange(24).reshape(2, 12) % 3 > 0, all_trained(), -100)
    batch = taught(ours, 8) | {"labels": labels}
    value, expected = distill_loss(ours, batch, 1.0, 20, 5), chunked_loss(theirs, {"labels": labels}, 5)
    value.backward(), expected.backward()
    assert value.item() == expected.item() and torch.equal(ours.states.grad, theirs.states.grad)


def test_without_gradients_none_are_made() -> None:
    model = models()[0]
    batch = taught(model, 8)
    with torch.no_grad():
        value = distill_loss(model, batch, 0.3, 17, 13)
    expected, _ = formula(model, batch, 0.3, 17, 13)
    assert value.item() == pytest.approx(expected, rel=1e-5) and not value.requires_grad


def test_nothing_as_large_as_the_logits_or_the_head_is_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models(GgmlType.F32)[0]
    batch = taught(model, 4)
    for module in ("pipeline.models.quantized_head", "pipeline.models.distill_loss"):
        monkeypatch.setattr(f"{module}.BLOCK_HEAD", 20 * HIDDEN)
    with Sizes() as seen:
        distill_loss(model, batch, 0.0, 20, 1).backward()
        top_k_logprobs(model.states.detach()[:, :-1][followed(POSITIONS)], model, 4)
    assert max(seen.sizes) < VOCABULARY * HIDDEN and 20 * VOCABULARY not in seen.sizes


@pytest.mark.parametrize("block", [1, 7, 96])
@pytest.mark.parametrize("top_k", [1, 5, VOCABULARY])
def test_the_top_k_logprobs_are_those_of_all_logits(
    block: int, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "BLOCK_HEAD", block * HIDDEN)
    model = models(scale=4.0)[0]
    states = model.states.detach().flatten(0, 1)
    ids, logs = top_k_logprobs(states, model, top_k)
    whole = (states.double() @ model.lm_head.rows(0, VOCABULARY).double().T).log_softmax(1)
    expected, expected_ids = whole.topk(top_k, 1)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(logs[:, :-1].double(), expected, rtol=1e-5, atol=1e-5)
    left = whole.scatter(1, expected_ids, -torch.inf).logsumexp(1)
    torch.testing.assert_close(logs[:, -1].double(), left, rtol=1e-5, atol=1e-5)


def test_what_is_left_is_no_rounding_where_the_model_is_sure() -> None:
    model = models(scale=12.0)[0]
    states = model.states.detach().flatten(0, 1)
    _, logs = top_k_logprobs(states, model, 40)
    whole = (states.double() @ model.lm_head.rows(0, VOCABULARY).double().T).log_softmax(1)
    left = whole.sort(1).values[:, : VOCABULARY - 40].logsumexp(1)
    assert float(left.min()) < -20  # one minus the others would be 0 or 1e-7 here
    torch.testing.assert_close(logs[:, -1].double(), left, rtol=1e-4, atol=1e-3)
