"""Attention a row at a time: the numbers of PyTorch's own, rows found in whatever mask a model makes."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, MistralConfig, Qwen2Config
from transformers.integrations import sdpa_attention

from pipeline.models.packed_rows import LIMIT, packed_difference, packed_positions
from pipeline.models.row_attention import Row, attend_by_row, rows_of

LENGTHS = (7, 19, 1, 12)
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
CONFIGS = {
    "qwen2": Qwen2Config(**SIZES),
    "sliding": MistralConfig(**SIZES, sliding_window=8),
    "both": Gemma3TextConfig(
        **SIZES, head_dim=16, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
}


def model_of(name: str) -> Any:
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="sdpa")


def computed(model: Any) -> tuple[torch.Tensor, ...]:
    """The logits of a packed row, and the gradients of the layers."""
    ids = torch.arange(sum(LENGTHS))[None] % 90 + 3
    model.zero_grad()
    logits = model(
        input_ids=ids, use_cache=False, position_ids=packed_positions(LENGTHS)["position_ids"]
    ).logits
    logits.square().mean().backward()
    return logits.detach(), *(p.grad.clone() for p in model.model.layers.parameters())


@pytest.mark.parametrize("name", CONFIGS)
def test_each_row_is_computed_by_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(name)
    before = computed(model)
    lengths: list[int] = []
    whole = sdpa_attention.sdpa_attention_forward

    def seen(module: Any, query: Any, *arguments: Any, **more: Any) -> Any:
        lengths.append(query.shape[2])
        return whole(module, query, *arguments, **more)

    monkeypatch.setattr(sdpa_attention, "sdpa_attention_forward", seen)
    attend_by_row(model)
    torch.testing.assert_close(computed(model), before, rtol=1e-4, atol=1e-6)
    assert lengths == [*LENGTHS] * 2
    assert packed_difference(model) < LIMIT


def test_answers_and_padding_are_as_before() -> None:
    model = model_of("sliding").eval()
    ids = torch.tensor([[3, 4, 5, 6], [0, 0, 7, 8]])
    padding = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])

    def answers() -> torch.Tensor:
        return model.generate(ids, attention_mask=padding, max_new_tokens=12, do_sample=False)  # type: ignore[no-any-return]

    before = answers()
    attend_by_row(model)
    assert answers().equal(before)


def test_rows_are_those_that_the_mask_keeps_apart() -> None:
    square = torch.block_diag(torch.ones(3, 3).tril(), torch.ones(2, 2).tril()).bool()
    assert rows_of(square[None, None]) == [Row(0, 3, None), Row(3, 5, None)]
    window = square.clone()
    window[2, 0] = False
    first, second = rows_of(window[None, None])
    assert second == Row(3, 5, None) and first.mask.equal(window[None, None, :3, :3])
    square[4, 0] = True  # It sees another row, but not all between.
    assert rows_of(square[None, None]) == []
