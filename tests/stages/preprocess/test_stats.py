"""Statistics of the rows: every row is counted once, and a few rows of each kind are kept for the eye."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.stages.preprocess.stats import SplitStats

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
        ({"messages": [USER, ANSWER], "kind": "feedback", "label": True}, "feedback"),
        ({"messages": [USER], "kind": "preference"}, "preference"),
        ({"messages": [], "kind": "text", "segments": []}, "text"),
        ({"kind": "text", "segments": []}, "text"),
    ],
)
def test_kinds(row: dict[str, Any], kind: str) -> None:
    found = SplitStats()
    found.keep(row, ["a"])
    assert found.kinds == {kind: 1}
    if kind != "text":
        found.keep(row, ["a#1", "a#2"])
        assert found.kinds[kind if kind in ("feedback", "preference") else "unfolded"] > 0
        assert found.kinds[kind] == 1 + (kind in ("feedback", "preference"))


def test_rows_are_counted_and_a_few_remembered() -> None:
    found = SplitStats()
    for number in range(5):
        found.keep({"messages": [USER, ANSWER]}, [f"a{number}"])
        turns = [{"role": "system", "content": "s"}, USER, ANSWER, USER, ANSWER]
        found.keep({"messages": turns}, [f"b{number}#1", f"b{number}#2"])
        found.reject({"kind": "chat"}, f"c{number}", "too_long", f"{number} tokens")
    stats = found.stats([3, 20])
    assert stats["rows_read"] == 15
    assert stats["kinds"] == {"one exchange": 5, "unfolded": 5}
    assert stats["rejected"] == {"too_long": 5}
    few = [{"row": f"c{number}", "why": f"{number} tokens"} for number in (0, 1)]
    assert stats["rejects"] == {"too_long": few}
    assert stats["rows_without_system"] == 5
    assert stats["system_prompt"] == {"text": "s", "rows": 5}
    assert "system_prompt" not in SplitStats().stats([])
    assert found.examples == {"one exchange": ["a0", "a1"], "unfolded": ["b0#1", "b0#2"]}


@given(lengths=st.lists(st.integers(1, 100_000)))
@example(lengths=[16 * 32])
def test_the_histogram_counts_every_length_once(lengths: list[int]) -> None:
    bins = SplitStats().stats(lengths)["lengths"]
    assert len(bins) <= 32
    assert sum(one["rows"] for one in bins) == len(lengths)
    assert all(one["rows"] == sum(one["from"] <= length < one["to"] for length in lengths) for one in bins)
