"""Inline reasoning goes to `reasoning_content`, and only where the base knows the tokens."""

from typing import Any

import pytest
from canonical import check_row

from pipeline.chat.rows import row_id
from pipeline.stages.curate.rules.shape import move_reasoning, reasoning


def row(*contents: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return {"source": "a.jsonl:1", "kind": "chat", "domain": "a", "messages": messages, **more}


@pytest.mark.parametrize(
    ("content", "thought", "answer"),
    [
        ("<think>\nTwo and two.\n</think>\n\n4", "Two and two.", "4"),
        ("  <think>a</think>b</think>", "a", "b</think>"),
        ("<think>\n\n</think>\n\n4", None, "4"),
    ],
)
def test_thoughts_are_moved(content: str, thought: str | None, answer: str) -> None:
    changes: list[Any] = []
    moved = move_reasoning(row("2 + 2?", content), changes)
    assert moved["messages"][1]["content"] == answer
    assert moved["messages"][1].get("reasoning_content") == thought
    assert [(change.rule, change.place) for change in changes] == [("reasoning", "messages 2")]
    check_row({"id": row_id(moved), **moved})
    assert move_reasoning(moved, []) is moved


def test_the_row_itself_is_not_changed() -> None:
    before = row("a", "<think>x</think>y")
    move_reasoning(before, [])
    assert before == row("a", "<think>x</think>y")


@pytest.mark.parametrize(
    "content", ["4", "see <think>x</think> y", "<think>never closed", "<thinking>x</thinking>y"]
)
def test_other_text_stays(content: str) -> None:
    same = row("<think>x</think>", content)
    assert move_reasoning(same, []) is same


def test_a_turn_that_has_reasoning_stays() -> None:
    same = row("a", "<think>x</think>y")
    same["messages"][1]["reasoning_content"] = "z"
    assert move_reasoning(same, []) is same


def test_the_answers_of_a_preference_too() -> None:
    pair = row("a") | {
        "kind": "preference",
        **{
            side: [{"role": "assistant", "content": f"<think>{side}</think>b"}]
            for side in ("chosen", "rejected")
        },
    }
    moved = move_reasoning(pair, [])
    assert [moved[side][0]["reasoning_content"] for side in ("chosen", "rejected")] == ["chosen", "rejected"]


def test_only_for_a_base_with_these_tokens() -> None:
    assert reasoning(["<|im_end|>", "<think>"]) is None
    assert reasoning(["<think>", "</think>"]) is move_reasoning
