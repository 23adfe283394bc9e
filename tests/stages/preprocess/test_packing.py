"""packing: nothing lost or cut, rows nearly full, and the loss is that of the rows alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.chat.tokens import IGNORED
from pipeline.stages.preprocess.packing import best_fit, in_order


@given(lengths=st.lists(st.integers(1, 50), max_size=120), capacity=st.integers(50, 90))
def test_every_sequence_is_in_one_row_whole(lengths: list[int], capacity: int) -> None:
    rows = best_fit(lengths, capacity)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    filled = [sum(lengths[number] for number in row) for row in rows]
    assert all(0 < tokens <= capacity for tokens in filled)
    assert rows == best_fit(lengths, capacity)
    half_empty = [tokens for tokens in filled if 2 * tokens <= capacity]
    assert len(half_empty) <= 1  # two of them would have been one


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ([], []),
        ([10], [[0]]),
        ([6, 4, 5, 5], [[0, 1], [2, 3]]),
        ([8, 7, 2], [[0, 2], [1]]),  # 2 goes where it fits best, not where there is most room
        ([2, 8, 7], [[1, 0], [2]]),  # the longest first
        ([5, 5, 5, 5], [[0, 1], [2, 3]]),
    ],
)
def test_best_fit(lengths: list[int], rows: list[list[int]]) -> None:
    assert best_fit(lengths, 10) == rows


@given(lengths=st.lists(st.integers(1, 50), max_size=120), capacity=st.integers(50, 90))
def test_packed_in_order_nothing_changes_places_and_no_row_ends_early(
    lengths: list[int], capacity: int
) -> None:
    rows = in_order(lengths, capacity)
    assert [number for row in rows for number in row] == [*range(len(lengths))]
    filled = [sum(lengths[number] for number in row) for row in rows]
    assert all(0 < tokens <= capacity for tokens in filled)
    assert all(tokens + lengths[row[0]] > capacity for tokens, row in zip(filled, rows[1:], strict=False))


@pytest.mark.parametrize("pack", [best_fit, in_order])
@pytest.mark.parametrize("length", [0, 11])
def test_nothing_is_cut(length: int, pack: Any) -> None:
    with pytest.raises(AssertionError, match="takes 1 to 10"):
        pack([3, length], 10)


def test_the_packed_loss_is_the_loss_of_the_rows(whole_qwen2: Path) -> None:
    """In float32, by TRL's collator, as train makes batches: no mask, positions restart, no cache."""
    import torch
    from transformers import AutoModelForCausalLM
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    model = AutoModelForCausalLM.from_pretrained(whole_qwen2, dtype=torch.float32).eval()
    draw = np.random.default_rng(0)
    rows = []
    for length in (9, 40, 23, 5):
        ids = draw.integers(0, 150_000, size=length).tolist()
        labels = [token if place > length // 2 else IGNORED for place, token in enumerate(ids)]
        rows.append({"input_ids": ids, "labels": labels})
    packed = {key: [token for row in rows for token in row[key]] for key in ("input_ids", "labels")}
    packed["seq_lengths"] = [len(row["input_ids"]) for row in rows]

    def loss(*examples: dict[str, list[int]]) -> float:
        batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(list(examples))
        assert "attention_mask" not in batch
        wanted = batch.pop("labels")[0, 1:]
        with torch.no_grad():
            logits = model(**batch, use_cache=False).logits[0, :-1]
        return float(torch.nn.functional.cross_entropy(logits, wanted, reduction="sum"))

    alone = sum(loss(row) for row in rows)
    assert loss(packed) == pytest.approx(alone, rel=1e-5)
    assert loss(*rows) == pytest.approx(alone, rel=1e-5)
    # the test can fail
    assert loss(packed | {"seq_lengths": [sum(packed["seq_lengths"])]}) != pytest.approx(alone, rel=1e-3)
