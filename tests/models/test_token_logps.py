"""Log-probabilities of tokens and what is made of them, against plain torch with all logits; of a dense head
and of a quantized one.
"""

from typing import Any

import pytest
import torch
from heads import models, tiny

from pipeline.models import chunked_loss as module
from pipeline.models.chunked_loss import token_logps, weighted_loss

LENGTHS = (5, 7)  # tokens of two sequences in one row


def batch() -> dict[str, Any]:
    ids = torch.arange(sum(LENGTHS))[None] * 5 % 96
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    labels = torch.where((positions > 1) & (positions != 4), ids, -100)
    return {"input_ids": ids, "labels": labels, "position_ids": positions}


def plain(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """The same log-probabilities from all logits, one sequence at a time."""
    found, start = [], 0
    for length in LENGTHS:
        ids, labels = (inputs[name][:, start : start + length] for name in ("input_ids", "labels"))
        logps = model(input_ids=ids, use_cache=False).logits[:, :-1].float().log_softmax(-1)
        trained = labels[:, 1:] != -100
        found.append(logps.gather(-1, ids[:, 1:, None])[..., 0][trained])
        start += length
    return torch.cat(found)


def gradient(model: Any, loss: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    found: torch.Tensor = model.model.layers[0].self_attn.q_proj.weight.grad.clone()
    return found


def nonlinear(logps: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient by each token differs, as that of preferences does."""
    return (logps[:4].sum() * 0.2 - logps[4:].sum() * 0.1).sigmoid() + logps.square().mean()


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_log_probabilities_and_gradients_are_those_of_all_logits(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_LOGITS", chunk * 96)
    model, inputs = tiny("qwen2", tie_word_embeddings=False), batch()
    ours, theirs = token_logps(model, inputs), plain(model, inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    expected = gradient(model, nonlinear(theirs))
    torch.testing.assert_close(gradient(model, nonlinear(ours)), expected, rtol=1e-4, atol=1e-5)


def test_a_quantized_head_gives_what_the_same_head_dense_does() -> None:
    labels = torch.where(torch.arange(24) % 3 > 0, torch.arange(24) * 5 % 96, -100).reshape(2, 12)
    found = []
    for one in models():
        loss = nonlinear(token_logps(one, {"labels": labels}))
        loss.backward()
        found.append((loss.item(), one.states.grad))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert float(found[1][1].abs().max()) > 0
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-3, atol=1e-6)


def test_the_weighted_loss_is_plain_torchs() -> None:
    model, inputs = tiny("qwen2", tie_word_embeddings=False), batch()
    # every token's weight is its own, so that one moved by a place shows
    ours = weighted_loss(model, inputs, torch.arange(12.0)[None], 9)
    theirs = -(plain(model, inputs) * torch.tensor([2.0, 3, 7, 8, 10, 11])).sum() / 9
    assert float(ours) == pytest.approx(float(theirs), rel=1e-5)
    torch.testing.assert_close(gradient(model, ours), gradient(model, theirs), rtol=1e-4, atol=1e-6)
