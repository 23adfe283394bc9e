"""pipeline.stages.train.invariants: repeated and skipped rows are named, and nothing else is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import GateError
from pipeline.stages.train.invariants import check_rows


def run(order: list[list[int]], steps_per_epoch: int) -> list[dict[str, Any]]:
    """A metrics log's rows for the packed rows of each step."""
    rows = [
        {"kind": "step", "step": step, "epoch": step / steps_per_epoch, "rows": taken}
        for step, taken in enumerate(order, start=1)
    ]
    return [*rows, {"kind": "eval", "step": len(order), "eval_loss": 1.0, "samples": []}]


def faults_of(rows: list[dict[str, Any]], packed: int) -> str:
    """Return the faults that the run is refused for; an empty string if it is right."""
    try:
        check_rows(rows, packed)
    except GateError as error:
        assert error.id == "Q-TRAIN-022"
        return error.sentence.rpartition(": ")[0]
    return ""


@given(st.data(), st.integers(1, 20), st.integers(1, 4), st.integers(1, 4))
def test_any_order_of_whole_epochs_is_right(
    data: st.DataObject, packed: int, per_step: int, epochs: int
) -> None:
    order: list[list[int]] = []
    for _ in range(epochs):
        shuffled = data.draw(st.permutations(range(packed)))
        order += [shuffled[start : start + per_step] for start in range(0, packed, per_step)]
    stopped = data.draw(st.integers(0, len(order)))
    check_rows(run(order[:stopped], -(-packed // per_step)), packed)


TWO_EPOCHS = [[0, 1], [2, 3], [3, 0], [1, 2]]
FAULTS = [
    ([[0, 1], [2, 3], [3, 3], [1, 2]], "epoch 2, packed row 3: repeated; epoch 2, packed row 0: skipped"),
    ([[0, 1], [2, 3], [3, 0], [1]], "epoch 2, packed row 2: skipped"),
    ([[0, 1], [2, 4], [3, 0], [1, 2]], "epoch 1, packed row 4: unknown; epoch 1, packed row 3: skipped"),
    ([[0, 1], [2, 3], [1, 1]], "epoch 2, packed row 1: repeated"),  # unfinished: nothing is skipped yet
]


@pytest.mark.parametrize(("order", "faults"), FAULTS)
def test_repeated_and_skipped_rows_are_named(order: list[list[int]], faults: str) -> None:
    assert faults_of(run(order, 2), 4) == faults


def test_an_epoch_number_that_was_rounded_up_is_of_its_own_epoch() -> None:
    rows = [
        row | {"epoch": row["epoch"] + 5e-7} if row["kind"] == "step" else row for row in run(TWO_EPOCHS, 2)
    ]
    check_rows(rows, 4)


def test_a_metrics_log_with_a_gap_or_a_doubled_step_is_named() -> None:
    rows = run(TWO_EPOCHS, 2)
    check_rows([], 4)
    gap = "the metrics log, step 2: skipped; epoch 1, packed row 2, 3: skipped"
    doubled, swapped = "the metrics log, step 1: repeated; ", "the metrics log: its steps are out of order"
    assert faults_of([rows[0], *rows[2:]], 4) == gap
    assert faults_of([rows[0], *rows], 4).startswith(doubled)
    assert faults_of([*rows[2:], *rows[:2]], 4) == swapped


def test_five_numbers_are_named_and_the_rest_is_counted() -> None:
    five, seven = (faults_of(run([[0]], 1), packed) for packed in (6, 8))
    assert "1, 2, 3, 4, 5: skipped" in five and "5 and 2 more" in seven
