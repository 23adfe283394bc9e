"""tally: every row is counted once, and rows of each kind are kept for the eye."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.stages.preprocess.stats import BINS, FIRST_BIN, SplitStats, histogram, kind_of, row_name

USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"messages": [USER, ANSWER]}, "one exchange"),
        ({"messages": [USER, ANSWER, USER, ANSWER]}, "several turns"),
        ({"messages": [USER, ANSWER | {"train": False}, USER, ANSWER]}, "untrained turn"),
        ({"messages": [USER, ANSWER | {"reasoning_content": "hm"}]}, "reasoning"),
        ({"messages": [USER, ANSWER | {"tool_calls": []}]}, "tools"),
        ({"messages": [USER, ANSWER], "tools": [{}]}, "tools"),
        ({"messages": [], "kind": "text", "segments": []}, "text"),
        ({"kind": "text", "segments": []}, "text"),
    ],
)
def test_kinds(row: dict[str, Any], kind: str) -> None:
    assert kind_of(row, unfolded=False) == kind
    assert kind_of(row, unfolded=True) == "unfolded"


def test_rows_are_counted_and_a_few_remembered() -> None:
    split_stats = SplitStats()
    for number in range(5):
        split_stats.keep({"messages": [USER, ANSWER]}, [f"a{number}"])
        split_stats.keep(
            {"messages": [{"role": "system", "content": "s"}, USER, ANSWER, USER, ANSWER]},
            [f"b{number}#1", f"b{number}#2"],
        )
        split_stats.reject({"kind": "chat"}, f"c{number}", "too_long", f"{number} tokens")
    stats = split_stats.stats([3, 20])
    assert stats["rows_read"] == 15
    assert stats["kinds"] == {"one exchange": 5, "unfolded": 5}
    assert stats["rejected"] == {"too_long": 5}
    assert stats["rejects"] == {
        "too_long": [{"row": "c0", "why": "0 tokens"}, {"row": "c1", "why": "1 tokens"}]
    }
    assert stats["rows_without_system"] == 5
    assert split_stats.examples == {"one exchange": ["a0", "a1"], "unfolded": ["b0#1", "b0#2"]}


@given(lengths=st.lists(st.integers(1, 100_000)))
@example(lengths=[FIRST_BIN * BINS])
def test_the_histogram_counts_every_length_once(lengths: list[int]) -> None:
    bins = histogram(lengths)
    assert len(bins) <= BINS
    assert sum(one["rows"] for one in bins) == len(lengths)
    assert all(one["rows"] == sum(one["from"] <= length < one["to"] for length in lengths) for one in bins)


def test_a_row_without_an_id_is_named_by_its_place() -> None:
    assert row_name({"id": "x"}, "train.jsonl", 3) == "x"
    assert row_name({}, "train.jsonl", 3) == "train.jsonl:3"
