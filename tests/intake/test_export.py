"""Chats survive the way to ShareGPT or Alpaca and back; what these can't say is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from canonical import CHATS, ROWS, TEXT
from hypothesis import assume, given
from hypothesis import strategies as st
from make import quench

from pipeline.chat.rows import row_id
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.intake.rows.formats import to_row

ASK = {"role": "user", "content": "2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": "ü"}}, "id": "c1"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "4", "tool_call_id": "c1"}
TOOL = {"type": "function", "function": {"name": "add"}}


def chat(*messages: Any, kind: str = "chat", **more: Any) -> dict[str, Any]:
    return {"source": "a.jsonl:1", "kind": kind, "domain": "a", "messages": list(messages), **more}


def export(root: Path, form: str, row: dict[str, Any]) -> dict[str, Any] | None:
    """The row as the command writes it in this format; None where that can't say it."""
    (root / "data/final").mkdir(parents=True, exist_ok=True)
    write_rows(root / "data/final/train.jsonl", [{"id": row_id(row), **row}])
    shown = quench("data", "export", root / "out.jsonl", "--to", form, "--force", "--root", root)
    written = list(read_rows(root / "out.jsonl"))
    refused = ": not_exportable: " in shown.stdout
    assert (shown.exit_code, len(written), refused) in ((0, 1, False), (3, 0, True)), shown.output
    return written[0] if written else None


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


def back(exported: dict[str, Any], format: str = "auto") -> dict[str, Any]:
    """The exported row as a line of JSON, read again."""
    return to_row(json.loads(json.dumps(exported)), source="a.jsonl:1", domain="a", format=format)


def sayable(turn: dict[str, Any]) -> bool:
    return "reasoning_content" not in turn and not ("tool_calls" in turn and turn["content"])


@given(made=CHATS)
def test_sharegpt_and_back(root: Path, made: dict[str, Any]) -> None:
    """To the order of the keys, so that the id is what it was."""
    row = back(made)
    exported = export(root, "sharegpt", row)
    assert (exported is not None) == all(map(sayable, row["messages"]))
    if exported:
        assert json.dumps(back(exported)) == json.dumps(back(exported, "sharegpt")) == json.dumps(row)


@given(printed=st.lists(TEXT.filter(bool), min_size=2, max_size=7), reward=st.none() | st.floats(-9, 9))
def test_alpaca_and_back(root: Path, printed: list[str], reward: float | None) -> None:
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": text}
        for number, text in enumerate(printed[len(printed) % 2 :])
    ]
    system = [{"role": "system", "content": text} for text in printed[: len(printed) % 2]]
    assume(all(turn["content"].strip() for turn in system))  # A blank one is read as none.
    row = chat(*system, *turns, **({} if reward is None else {"reward": reward}))
    exported = export(root, "alpaca", row)
    assert exported and back(exported) == back(exported, "alpaca") == row


def test_sharegpt_is_what_other_trainers_read(root: Path) -> None:
    row = chat(ASK, CALLING, RESULT, ANSWER | {"train": False}, tools=[TOOL])
    assert export(root, "sharegpt", row) == {
        "conversations": [
            {"from": "human", "value": "2 + 2?"},
            {"from": "function_call", "value": '{"name": "add", "arguments": {"a": "ü"}, "id": "c1"}'},
            {"from": "observation", "value": "4", "tool_call_id": "c1"},
            {"from": "gpt", "value": "4", "weight": 0},
        ],
        "tools": '[{"name": "add"}]',
    }


def test_alpaca_is_what_other_trainers_read(root: Path) -> None:
    row = chat({"role": "system", "content": "Be brief."}, ASK, ANSWER, ASK, ANSWER)
    assert export(root, "alpaca", row) == {
        "instruction": "2 + 2?",
        "input": "",
        "output": "4",
        "system": "Be brief.",
        "history": [["2 + 2?", "4"]],
    }


@pytest.mark.parametrize(
    ("form", "row"),
    [
        ("sharegpt", chat(ASK, CALLING | {"content": "let me see"})),
        ("alpaca", chat(ASK, ANSWER, tools=[TOOL])),
        ("alpaca", chat(ASK, CALLING, RESULT, ANSWER)),
        ("alpaca", chat(ASK, ANSWER | {"train": False})),
        ("alpaca", chat(ASK | {"name": "Ann"}, ANSWER)),
        ("alpaca", chat(ASK, ANSWER, ASK)),
        ("alpaca", chat(ANSWER, ASK)),
        ("alpaca", chat({"role": "system", "content": ""}, ASK, ANSWER)),
        ("alpaca", chat()),
    ],
)
def test_what_a_format_can_not_say_is_refused(root: Path, form: str, row: dict[str, Any]) -> None:
    assert export(root, form, row) is None


@given(row=ROWS.filter(lambda row: row["kind"] != "chat"))
def test_other_kinds_are_refused(root: Path, row: dict[str, Any]) -> None:
    for form in ("sharegpt", "alpaca"):
        assert export(root, form, row) is None
