"""Batches of packed rows, compared with TRL's."""

import random
from typing import Any

import pytest
import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from pipeline.stages.train.dataset import flattened

BORDERS = {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"}


def packed_rows(lengths: list[list[int]]) -> list[dict[str, Any]]:
    """Return rows with sequences of these lengths, ids and labels drawn by chance."""
    draw = random.Random(0)  # noqa: S311
    rows = []
    for row in lengths:
        ids = [draw.randrange(1000) for _ in range(sum(row))]
        labels = [draw.choice([-100, token]) for token in ids]
        rows.append({"input_ids": ids, "labels": labels, "seq_lengths": row})
    return rows


@pytest.mark.parametrize("lengths", [[[5, 1, 7]], [[3], [4]], [[2, 2], [9], [1, 1, 1]]])
def test_several_sequences_are_flattened_as_trl_does_it(lengths: list[list[int]]) -> None:
    rows = packed_rows(lengths)
    theirs = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(rows)
    ours = flattened(rows)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        same_type = getattr(ours[name], "dtype", int) == getattr(value, "dtype", int)
        assert same_type and torch.equal(torch.as_tensor(ours[name]), torch.as_tensor(value)), name


def test_one_sequence_names_no_borders() -> None:
    rows = packed_rows([[6]])
    theirs = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(rows)
    ours = flattened(rows)
    assert ours.keys() == theirs.keys() - BORDERS
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
