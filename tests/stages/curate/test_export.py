"""Chats survive the way to ShareGPT or Alpaca and back; what these can't say is refused."""

import json
from typing import Any

import pytest
from canonical import CHATS, ROWS, TEXT
from hypothesis import given
from hypothesis import strategies as st

from pipeline.chat.rows import BadRow
from pipeline.commands.data.export import to_alpaca, to_sharegpt
from pipeline.stages.curate.reading.formats import detect, to_row

ASK = {"role": "user", "content": "2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": "ü"}}, "id": "c1"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "4", "tool_call_id": "c1"}
TOOL = {"type": "function", "function": {"name": "add"}}


def chat(*messages: Any, kind: str = "chat", **more: Any) -> dict[str, Any]:
    return {"source": "a.jsonl:1", "kind": kind, "domain": "a", "messages": list(messages), **more}


def back(exported: dict[str, Any]) -> dict[str, Any]:
    """The exported row as a line of JSON, read again."""
    return to_row(json.loads(json.dumps(exported)), source="a.jsonl:1", domain="a")


def sayable(turn: dict[str, Any]) -> bool:
    return "reasoning_content" not in turn and not ("tool_calls" in turn and turn["content"])


@given(CHATS)
def test_sharegpt_and_back(made: dict[str, Any]) -> None:
    """To the order of the keys, so that the id is what it was."""
    row = back(made)
    if not all(map(sayable, row["messages"])):
        with pytest.raises(BadRow):
            to_sharegpt(row)
        return
    exported = to_sharegpt(row)
    assert detect(exported) == "sharegpt"
    assert json.dumps(back(exported)) == json.dumps(row)


@given(st.lists(TEXT.filter(bool), min_size=2, max_size=7), st.none() | st.floats(-9, 9))
def test_alpaca_and_back(printed: list[str], reward: float | None) -> None:
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": text}
        for number, text in enumerate(printed[len(printed) % 2 :])
    ]
    system = [{"role": "system", "content": text} for text in printed[: len(printed) % 2]]
    row = chat(*system, *turns, **({} if reward is None else {"reward": reward}))
    exported = to_alpaca(row)
    assert detect(exported) == "alpaca"
    assert back(exported) == row


def test_sharegpt_is_what_other_trainers_read() -> None:
    row = chat(ASK, CALLING, RESULT, ANSWER | {"train": False}, tools=[TOOL])
    assert to_sharegpt(row) == {
        "conversations": [
            {"from": "human", "value": "2 + 2?"},
            {"from": "function_call", "value": '{"name": "add", "arguments": {"a": "ü"}, "id": "c1"}'},
            {"from": "observation", "value": "4", "tool_call_id": "c1"},
            {"from": "gpt", "value": "4", "weight": 0},
        ],
        "tools": '[{"name": "add"}]',
    }


def test_alpaca_is_what_other_trainers_read() -> None:
    row = chat({"role": "system", "content": "Be brief."}, ASK, ANSWER, ASK, ANSWER)
    assert to_alpaca(row) == {
        "instruction": "2 + 2?",
        "input": "",
        "output": "4",
        "system": "Be brief.",
        "history": [["2 + 2?", "4"]],
    }


@pytest.mark.parametrize(
    ("export", "row"),
    [
        (to_sharegpt, chat(ASK, ANSWER | {"reasoning_content": "hm"})),
        (to_sharegpt, chat(ASK, CALLING | {"content": "let me see"})),
        (to_alpaca, chat(ASK, ANSWER, tools=[TOOL])),
        (to_alpaca, chat(ASK, CALLING, RESULT, ANSWER)),
        (to_alpaca, chat(ASK, ANSWER | {"reasoning_content": "hm"})),
        (to_alpaca, chat(ASK, ANSWER | {"train": False})),
        (to_alpaca, chat(ASK | {"name": "Ann"}, ANSWER)),
        (to_alpaca, chat(ASK, ANSWER, ASK)),
        (to_alpaca, chat(ANSWER, ASK)),
        (to_alpaca, chat(ASK, {"role": "system", "content": "Be brief."}, ANSWER)),
        (to_alpaca, chat({"role": "system", "content": ""}, ASK, ANSWER)),
        (to_alpaca, chat()),
    ],
)
def test_what_a_format_can_not_say_is_refused(export: Any, row: dict[str, Any]) -> None:
    with pytest.raises(BadRow) as caught:
        export(row)
    assert caught.value.code == "not_exportable"


@given(ROWS.filter(lambda row: row["kind"] != "chat"))
def test_other_kinds_are_refused(row: dict[str, Any]) -> None:
    for export in (to_sharegpt, to_alpaca):
        with pytest.raises(BadRow, match=row["kind"]):
            export(row)
