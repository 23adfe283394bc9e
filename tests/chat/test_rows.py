"""The canonical row: its model, its schema and its id; and that a rule reaches every text in it."""

import copy
import json
from typing import Any

import pytest
from canonical import ROWS, SCHEMA, check_row, leaves
from hypothesis import given
from jsonschema import Draft202012Validator

from pipeline.chat.rows import BadRow, edit_texts, json_schema, row_id, texts
from pipeline.core.places import PROJECT

ASK = {"role": "user", "content": "2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"terms": [2, "two"]}}, "id": "1"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"properties": {"terms": {"type": "array"}}}},
}


def row(kind: str = "chat", messages: Any = (ASK, ANSWER), **content: Any) -> dict[str, Any]:
    made = {"source": "a.jsonl:1", "kind": kind, "domain": "a", "messages": list(messages), **content}
    return {"id": row_id(made), **made}


def test_the_published_schema_is_the_models() -> None:
    """`python -m pipeline.chat.rows > docs/row.schema.json` writes it."""
    assert (PROJECT / "docs/row.schema.json").read_text(encoding="utf-8") == json.dumps(
        json_schema(), indent=2
    ) + "\n"
    Draft202012Validator.check_schema(json_schema())


@given(ROWS)
def test_every_kind_passes_model_and_schema(made: dict[str, Any]) -> None:
    check_row(made)


@pytest.mark.parametrize(
    "bad",
    [
        {},
        row("talk"),
        row(messages=[ASK, ANSWER | {"content": None}]),
        row(messages=[ASK, ANSWER | {"role": "gpt"}]),
        row(messages=[ASK, ANSWER | {"train": 0}]),
        row(messages=[ASK, ANSWER | {"weight": 0}]),
        row(messages=[ASK, CALLING | {"tool_calls": [CALL | {"function": {"name": "f", "arguments": ""}}]}]),
        row(label=True),
        row(segments=[]),
        row("feedback"),
        row("feedback", label=1),
        row("preference", chosen=[ANSWER]),
        row("prompt", answer=4),
        row("text", segments=[{"text": "a", "train": True}]),
        row("text", messages=[], segments=[{"text": "a"}]),
        row() | {"source": 3},
        row(**{"k" * 99: 1}),
    ],
)
def test_what_is_no_canonical_row(bad: dict[str, Any]) -> None:
    assert not SCHEMA.is_valid(bad)


def test_the_id_is_of_the_content_alone() -> None:
    plain = row()
    assert (
        plain["id"] == row_id(plain | {"source": "b.jsonl:9", "domain": "b", "id": "x"}) == "940fdfbe13cd5bae"
    )
    others = [
        row(tools=[TOOL]),
        row(reward=1.0),
        row("feedback", label=True),
        row("feedback", label=False),
        row("prompt", answer="4"),
    ]
    assert len({made["id"] for made in (plain, *others)}) == 6


@given(ROWS)
def test_an_edit_that_changes_nothing_gives_the_row_itself(made: dict[str, Any]) -> None:
    before = copy.deepcopy(made)
    assert edit_texts(made, lambda place, text: text) is made
    assert made == before


@given(ROWS)
def test_an_edit_reaches_every_text_and_nothing_else(made: dict[str, Any]) -> None:
    before = copy.deepcopy(made)
    changed = edit_texts(made, lambda place, text: f"{text}!")
    assert made == before
    content = {key: value for key, value in changed.items() if key not in ("id", "source", "kind", "domain")}
    ours = {
        *("messages", "chosen", "rejected", "segments", "tools", "answer", "label", "reward", "train"),
        *("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "text", "type", "function"),
        *("name", "arguments", "id", "system", "user", "assistant", "tool", "other_references"),
    }
    assert [leaf for leaf in leaves(content) if not leaf.endswith("!") and leaf not in ours] == []
    assert [text for _, text in texts(changed)] == [f"{text}!" for _, text in texts(made)]
    check_row(changed | {"id": row_id(changed)})


def test_every_text_has_a_place() -> None:
    thinking = {"role": "assistant", "content": "d", "reasoning_content": "e", "name": "f"}
    result = {"role": "tool", "content": "g", "tool_call_id": "h"}
    made = row(
        "preference", messages=[ASK, CALLING, result], tools=[TOOL], chosen=[thinking], rejected=[ANSWER]
    )
    found = list(texts(made))
    assert [place for place, _ in found if place != "tools"] == [
        "messages 1",
        "messages 2",
        *["messages 2 tool_calls"] * 4,
        "messages 3",
        "messages 3 tool_call_id",
        "chosen 1",
        "chosen 1 reasoning_content",
        "chosen 1 name",
        "rejected 1",
    ]
    assert [text for place, text in found if place == "messages 2 tool_calls"] == ["add", "terms", "two", "1"]
    prompt = row("prompt", messages=[ASK], answer="4")
    assert [place for place, _ in texts(prompt)] == ["messages 1", "answer"]
    text = row("text", messages=[], segments=[{"text": "a", "train": False}])
    assert list(texts(text)) == [("segments 1", "a")]


def test_an_edit_never_loses_an_argument() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"key": 1, "KEY": 2}}}
    with pytest.raises(BadRow) as caught:
        edit_texts(row(messages=[{**CALLING, "tool_calls": [call]}]), lambda place, text: text.lower())
    assert caught.value.code == "duplicate_key"
