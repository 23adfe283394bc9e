"""Calls as text: what the text of one turn holds, in time that grows with its length alone."""

import json
import time

import pytest
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.chat.rows import BadRow, Row
from pipeline.intake.rows.text_calls import NotCalls, find_calls, split_results, untagged_calls
from pipeline.intake.rows.turns import read_turns
from pipeline.stages.curate.rules.calls import ReadCalls

CALL = {"name": "f", "arguments": {"a": 1}}
TEXT = json.dumps(CALL)
THOUGHT = "<think>as in\n<tool_call>{}</think>"


@pytest.mark.parametrize(
    ("text", "before"),
    [
        (f"<tool_call>\n{TEXT}\n</tool_call>", ""),
        (f"Now:\n\n<tool_call>{TEXT}", "Now:"),  # cut off where the model stops
        (f"{THOUGHT}<tool_call>{TEXT}</tool_call>", THOUGHT),
        (f"`<tool_call>` it is:\n  <tool_call>{TEXT}</tool_call>", "`<tool_call>` it is:"),
        (f"```\n<tool_call>{{}}\n```\n<functioncall> {TEXT}</functioncall>", "```\n<tool_call>{}\n```"),
        ("<tool_call>{'name': 'f', 'arguments': {'a': 1}}</tool_call>", ""),
        ('<functioncall> {"name": "f", "arguments": \'{"a": 1}\'}', ""),
        ('<function=f>{"a": 1}</function>', ""),
        (f"<|tool_call|>[{TEXT}]<|/tool_call|>", ""),
    ],
)
def test_a_call_is_found_behind_its_tag(text: str, before: str) -> None:
    assert find_calls(text) == (before, [CALL])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{'name': 'f', 'arguments': {'a': {1}}}</tool_call>",  # a set, which JSON lacks
        "<tool_call>{'name': 'f', 'arguments': {'a': 1, 'a': 2}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}, "parameters": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}, "thoughts": "hm"}</tool_call>',
        "<tool_call>{'name': f(), 'arguments': {}}</tool_call>",
        "<tool_call>[]</tool_call>",
        f"<tool_call>{TEXT}</tool_call> and so on",
    ],
)
def test_what_can_be_read_in_no_single_way_is_no_call(text: str) -> None:
    with pytest.raises(NotCalls):
        find_calls(text)


@pytest.mark.parametrize(
    "text", ["[1]", "{}", "[f(1)]", "[f(a=b)]", "[f]", "f(a=1)", '{"name": "f"}', "text"]
)
def test_other_lists_and_objects_are_no_calls(text: str) -> None:
    assert untagged_calls(text) is None


def test_a_turn_of_role_tool_call_may_have_the_tag_too() -> None:
    (turn,) = read_turns(
        [{"from": "tool_call", "value": f"<tool_call>\n{TEXT}\n</tool_call>"}], "conversations"
    )
    assert turn["tool_calls"] == [{"type": "function", "function": CALL}]
    with pytest.raises(BadRow, match="conversations 1 is not strict JSON"):
        read_turns([{"from": "tool_call", "value": f"Look: <tool_call>{TEXT}"}], "conversations")


def row(answer: str, result: str = "4", system: str = "") -> Row:
    turns = [("system", system), ("user", "q"), ("assistant", answer), ("tool", result), ("assistant", "x")]
    messages = [{"role": role, "content": content} for role, content in turns]
    return {"source": "a:1", "kind": "chat", "domain": "d", "messages": messages}


SIZE = 1 << 20
HOSTILE = {
    "tags": row("\n<tool_call>" * (SIZE // 12)),
    "fences": row("\n```\n<tool_call>{" * (SIZE // 17)),
    "calls": row("<tool_call>{'name':'f','arguments':{}}</tool_call>\n" * (SIZE // 51)),
    "depth": row('<tool_call>{"a":' + '{"a":' * (SIZE // 5)),
    "a text without end": row('<tool_call>{"name": "' + "a" * SIZE),
    "spaces": row("<tool_call>" + " " * SIZE),
    "results": row(f"<tool_call>{TEXT}", "<tool_response>" * (SIZE // 15)),
    "spaces in a result": row(f"<tool_call>{TEXT}", "<tool_response>" + " " * SIZE),
    "tools": row("x", system="<tools>[" * (SIZE // 8)),
    "lines about calls": row("x", system="<tool_call>\n" * (SIZE // 12) + '<tools>[{"name": "f"}]</tools>'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_takes_long(name: str) -> None:
    start = time.process_time()
    try:
        ReadCalls(None)(HOSTILE[name], [])
    except BadRow as error:
        assert error.code == "bad_tool_call"
    assert time.process_time() - start < 3


PIECES = st.lists(
    st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            "\n",
            " ",
            TEXT,
            "{'name'",
            "```",
            "text",
            "<functioncall>",
            "}",
            "<think>",
            "</think>",
            "<function=f>",
            "<tool_response>",
            "</tool_response>",
            "<|python_tag|>",
            "[f(a=1)]",
        ]
    ),
    max_size=8,
).map("".join)


@settings(max_examples=draws(400))
@given(text=PIECES)
def test_whatever_a_text_holds_is_kept_or_refused(text: str) -> None:
    try:
        found = find_calls(text)
    except NotCalls:
        found = None
    if found is not None:
        assert text.startswith(found.before)
        assert all(call["name"] == "f" for call in found.calls)
    results, rest = split_results(text)
    assert all(result in text for result in results)
    assert rest in text
