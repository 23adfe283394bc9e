"""Held-out chats are asked up to a turn that a scorer scores: the last one in words, the last that calls."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.chat.selection import answerable_rows, questions
from pipeline.core.errors import DataError
from pipeline.core.jsonl import write_rows

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
ASK, WORDS = {"role": "user", "content": "?"}, {"role": "assistant", "content": "yes"}
RESULT = {"role": "tool", "content": "1"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}],
}


def chat(name: str, *turns: dict[str, Any], tools: Any = TOOLS) -> dict[str, Any]:
    return {"id": name, "kind": "chat", "messages": list(turns)} | ({"tools": tools} if tools else {})


CHATS = [
    chat("words", ASK, WORDS),
    chat("ends", ASK, CALL),
    chat("middle", ASK, CALL, RESULT, CALL, RESULT, WORDS),
    chat("context", ASK, CALL | {"train": False}, RESULT, WORDS),
    chat("offers nothing", ASK, CALL, tools=None),
    chat("begins", CALL, RESULT, WORDS),
]


def asked(*scorers: str) -> dict[str, int]:
    """Return {id: number of turns} of the questions that `CHATS` gives for these scorers."""
    return {row["id"]: len(row["messages"]) for row in questions(CHATS, scorers)}


def test_words_are_asked_where_a_scorer_scores_words() -> None:
    words = {"words": 2, "middle": 6, "context": 4, "begins": 3}
    assert asked("exact_match") == words
    calls = {"ends": 2, "middle#4": 4}
    assert asked("tool_calls") == calls
    assert asked("rouge_l", "tool_calls") == words | calls
    assert asked() == {}


def test_a_chat_that_is_asked_up_to_its_middle_keeps_its_tools() -> None:
    (_, middle) = questions(CHATS, ["tool_calls"])
    assert (middle["messages"], middle["tools"]) == (CHATS[2]["messages"][:4], TOOLS)


def test_without_any_call_there_is_nothing_to_ask(tmp_path: Path) -> None:
    file = tmp_path / "test.jsonl"
    write_rows(file, CHATS[:1])
    with pytest.raises(DataError, match="Q-CHAT-004"):
        answerable_rows(file, 8, ["tool_calls"])
    assert [row["id"] for row in answerable_rows(file, 8, ["tool_calls", "exact_match"])] == ["words"]
