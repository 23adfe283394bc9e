"""Each format gives the canonical form, strings untouched; the unrepresentable is refused with a reason."""

import json
import re
import time
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import pytest
from canonical import ROWS, check_row
from curating import Project, lines
from hypothesis import given
from hypothesis import strategies as st

from pipeline.chat.rows import BadRow, row_id
from pipeline.config.sections import Curate
from pipeline.core.places import PROJECT
from pipeline.intake.rows.formats import to_row

AUTO, *FORMATS = get_args(get_args(Curate.model_fields["formats"].annotation)[1])

SYSTEM = {"role": "system", "content": "Be brief."}
DEEP = "[" * 900 + "]" * 900  # JSON
ASK = {"role": "user", "content": "2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}
WRONG = {"role": "assistant", "content": "5"}
ADD = {
    "name": "add",
    "description": "adds",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
TOOL = {"type": "function", "function": ADD}
RESULT = {"role": "tool", "content": "4"}
CANDIDATES = [{"content": {"role": "model", "parts": [{"text": "4"}]}, "finishReason": "STOP"}]


def read(value: dict[str, Any], format: str = "auto") -> dict[str, Any]:
    """The row without source and domain, after a check that it is canonical."""
    row = to_row(value, source="a.jsonl:1", domain="a", format=format)
    assert list(row)[:4] == ["source", "kind", "domain", "messages"]
    check_row({"id": row_id(row), **row})
    assert row.pop("source") == "a.jsonl:1"
    assert row.pop("domain") == "a"
    return row


def of(*messages: Any, **more: Any) -> dict[str, Any]:
    """A row of a file."""
    return {"messages": list(messages), **more}


def chat(*messages: Any, kind: str = "chat", **more: Any) -> dict[str, Any]:
    return {"kind": kind, **of(*messages, **more)}


def pair(*messages: Any) -> dict[str, Any]:
    """A preference for the right answer."""
    return chat(*messages, kind="preference", chosen=[ANSWER], rejected=[WRONG])


def said(*texts: str, trained: str) -> dict[str, Any]:
    """A row of text."""
    segments = [*({"text": text, "train": False} for text in texts), {"text": trained, "train": True}]
    return chat(kind="text", segments=segments)


def calling(**more: Any) -> dict[str, Any]:
    """A turn that calls `add`."""
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    return {"role": "assistant", "content": "", "tool_calls": [call | more]}


def openai_call(arguments: Any = '{"a": 2}', **more: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}],
    } | more


CALLING, CALLING_WITH_ID = calling(), calling(id="c1")
UP, DOWN = (chat(ASK, ANSWER, kind="feedback", label=thumb) for thumb in (True, False))
OUTPUTS = [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]

READ: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "messages": [
        (of(ASK, ANSWER), chat(ASK, ANSWER)),
        (of({"content": "2 + 2?", "role": "user"}, ANSWER, id=7, meta={}), chat(ASK, ANSWER)),
        (of(SYSTEM | {"role": "developer"}, ASK, ANSWER | {"refusal": None}), chat(SYSTEM, ASK, ANSWER)),
        (
            of(ASK, ANSWER | {"reasoning": "2, 2", "weight": 1}),
            chat(ASK, ANSWER | {"reasoning_content": "2, 2"}),
        ),
        (
            of(ASK | {"weight": 0}, ANSWER | {"weight": 0}, ASK, ANSWER | {"train": True}),
            chat(ASK, ANSWER | {"train": False}, ASK, ANSWER),
        ),
        (
            of(ASK | {"content": [{"type": "text", "text": "2 +"}, {"type": "text", "text": "2?"}]}, ANSWER),
            chat(ASK | {"content": "2 +\n2?"}, ANSWER),
        ),
        (
            of(ASK, openai_call(), RESULT | {"tool_call_id": "c1"}, ANSWER, tools=[TOOL]),
            chat(ASK, CALLING_WITH_ID, RESULT | {"tool_call_id": "c1"}, ANSWER, tools=[TOOL]),
        ),
        (
            of(
                ASK,
                ANSWER | {"content": None, "function_call": {"name": "add", "arguments": '{"a": 2}'}},
                RESULT | {"role": "function", "name": "add"},
                functions=[ADD],
            ),
            chat(ASK, CALLING, RESULT | {"name": "add"}, tools=[TOOL]),
        ),
        (
            of(ASK, {"role": "assistant", "tool_calls": [{"name": "add", "arguments": ""}]}),
            chat(ASK, calling(function={"name": "add", "arguments": {}})),
        ),
        (of(ASK, ANSWER, score=3), chat(ASK, ANSWER, reward=3.0)),
        (of(ASK, ANSWER, score=" -.5e1"), chat(ASK, ANSWER, reward=-5.0)),
        (
            of(
                ASK,
                {"role": "assistant", "tool_calls": [{"name": "add", "parameters": {"a": 2}}]},
                tools=[ADD | {"type": "function"}],
            ),
            chat(ASK, CALLING, tools=[TOOL]),
        ),
        (of(ASK, ANSWER, reward=-0.5, score=3, label="math"), chat(ASK, ANSWER, reward=-0.5)),
        (of(ASK, ANSWER, score="", reward=None, label=2), chat(ASK, ANSWER)),
        (of(ASK, ANSWER, label=False, reward=1), DOWN),
        (of(ASK, ANSWER, label=" False"), DOWN),
        (of(ASK, answer=4), chat(ASK, kind="prompt", answer="4")),
        (  # the columns of two formats, put together
            of(
                {"role": "user", "content": [{"type": None, "text": "2 + 2?"}], "from": None},
                {"role": None, "from": "gpt", "content": None, "value": "4", "train": None, "weight": 0},
                tools=[TOOL | {"type": None}],
            ),
            chat(ASK, ANSWER | {"train": False}, tools=[TOOL]),
        ),
        # as `quench data export` writes it
        (of(ASK, CALLING, RESULT, answer="4"), chat(ASK, CALLING, RESULT, kind="prompt", answer="4")),
        ({"messages": json.dumps([ASK, ANSWER])}, chat(ASK, ANSWER)),  # a table's cell
        (of(ASK, ANSWER, chosen=None, rejected=None), chat(ASK, ANSWER)),
    ],
    "sharegpt": [
        ({"conversations": OUTPUTS}, chat(ASK, ANSWER)),
        (
            {"conversation": [{"role": "User", "text": "2 + 2?"}, {"role": "ASSISTANT", "text": "4"}]},
            chat(ASK, ANSWER),
        ),
        ({"conversations": OUTPUTS, "label": "true"}, UP),
        ({"conversation": OUTPUTS, "kto_tag": 0, "label": "math"}, DOWN),
        (
            {"conversations": [OUTPUTS[0] | {"weight": 0}, OUTPUTS[1] | {"loss": False}]},
            chat(ASK, ANSWER | {"train": False}),
        ),
        (
            {
                "conversations": [
                    OUTPUTS[0],
                    {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 2}}'},
                    {"from": "observation", "value": "4"},
                    OUTPUTS[1],
                ],
                "tools": json.dumps([ADD]),
            },
            chat(ASK, CALLING, RESULT, ANSWER, tools=[TOOL]),
        ),
        (
            {
                "conversations": [
                    OUTPUTS[0],
                    {"from": "function-call", "value": '[{"name": "add", "arguments": "{\\"a\\": 2}"}]'},
                    {"from": "function-response", "value": "4"},
                ],
                "tools": "",
            },
            chat(ASK, CALLING, RESULT),
        ),
    ],
    "function_calls": [
        (
            {
                "query": "2 + 2?",
                "answers": '[{"name": "add", "arguments": {"a": 2}}]',
                "tools": [ADD],
                "id": 1,
            },
            chat(ASK, CALLING, tools=[TOOL]),
        ),
        (
            {"question": "2 + 2?", "answers": [CALLING["tool_calls"][0]], "tools": json.dumps([TOOL])},
            chat(ASK, CALLING, tools=[TOOL]),
        ),
        (
            {"query": "2 + 2?", "answers": [], "tools": [ADD]},
            chat(ASK, ANSWER | {"content": ""}, tools=[TOOL]),
        ),
    ],
    "requests": [
        (
            {"request": {"messages": [ASK]}, "response": {"choices": [{"message": ANSWER}]}, "score": 1},
            chat(ASK, ANSWER, reward=1.0),
        ),
        ({"messages": [ASK], "response": "4", "system": "Be brief."}, chat(SYSTEM, ASK, ANSWER)),
        ({"messages": [ASK, ANSWER], "response": " 4"}, chat(ASK, ANSWER)),
        ({"request": json.dumps(of(ASK)), "response": json.dumps(ANSWER)}, chat(ASK, ANSWER)),
        ({"messages": json.dumps([ASK]), "choices": [{"message": ANSWER}]}, chat(ASK, ANSWER)),
        ({"messages": [SYSTEM, ASK], "choices": [{"message": ANSWER}]}, chat(SYSTEM, ASK, ANSWER)),
    ],
    "gemini": [
        (
            {
                "contents": [
                    {"role": "user", "parts": [{"text": "2 + 2?"}]},
                    {"role": "model", "parts": [{"functionCall": {"name": "add", "args": {"a": 2}}}]},
                ],
                "tools": [{"function_declarations": [ADD]}],
                "system_instruction": "Be brief.",
            },
            chat(SYSTEM, ASK, CALLING, tools=[TOOL]),
        ),
        (
            {"contents": {"parts": [{"text": "2 + 2?"}]}, "response": {"candidates": CANDIDATES}},
            chat(ASK, ANSWER),
        ),
    ],
    "dialogue": [
        ({"data": ["2 + 2?", "4"], "id": "0"}, chat(ASK, ANSWER)),
        ({"data": '["2 + 2?", "4"]', "system": "Be brief."}, chat(SYSTEM, ASK, ANSWER)),
    ],
    "alpaca": [
        ({"instruction": "2 + 2?", "output": "4"}, chat(ASK, ANSWER)),
        ({"instruction": "2 + 2?", "output": "4", "kto_tag": "false"}, DOWN),
        ({"instruction": "", "input": "2 + 2?", "output": "4"}, chat(ASK, ANSWER)),
        (
            {"instruction": "Add", "context": "2, 2", "response": "4", "category": None},
            chat(ASK | {"content": "Add\n\n2, 2"}, ANSWER),
        ),
    ],
    "prompt_completion": [
        ({"prompt": "2 + 2?", "completion": "4"}, chat(ASK, ANSWER)),
        ({"prompt": [SYSTEM, ASK], "completion": "4", "score": "0.5"}, chat(SYSTEM, ASK, ANSWER, reward=0.5)),
    ],
    "query_response": [
        ({"question": "2 + 2?", "answer": "4"}, chat(ASK, ANSWER)),
        ({"query": "2 + 2?", "response": "4", "history": [["2 + 2?", "4"]]}, chat(ASK, ANSWER, ASK, ANSWER)),
        ({"system_prompt": "Be brief.", "question": "2 + 2?", "response": "4"}, chat(SYSTEM, ASK, ANSWER)),
        ({"input": "2 + 2?", "output": "4"}, chat(ASK, ANSWER)),
        ({"prompt": "2 + 2?", "response": "4", "answer": 4}, chat(ASK, ANSWER)),
    ],
    "input_output": [
        (
            {"segments": [{"label": False, "text": "Q: 2 + 2?\nA: "}, {"label": True, "text": "4"}]},
            said("Q: 2 + 2?\nA: ", trained="4"),
        ),
        ({"segments": [{"train": True, "text": "4"}]}, said(trained="4")),
    ],
    "text": [({"text": "2 + 2 = 4", "stars": 3}, said(trained="2 + 2 = 4"))],
    "preference": [
        ({"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}, pair(ASK)),
        (
            {
                "prompt": "2 + 2?",
                "chosen": [SYSTEM, ASK, ANSWER],
                "rejected": [SYSTEM, ASK, WRONG],
                "score_chosen": 9,
            },
            pair(SYSTEM, ASK),
        ),
        (
            {"system": "Be brief.", "prompt": "2 + 2?", "chosen": [ASK, ANSWER], "rejected": [ASK, WRONG]},
            pair(SYSTEM, ASK),
        ),
        (
            {"chosen": [ASK, ANSWER], "rejected": [ASK, ANSWER, ASK]},
            chat(ASK, kind="preference", chosen=[ANSWER], rejected=[ANSWER, ASK]),
        ),
        (
            {
                "chosen": "\n\nHuman: 2 + 2?\n\nAssistant: 4\n\nHuman: 2 + 2?\n\nAssistant: 4",
                "rejected": "\n\nHuman: 2 + 2?\n\nAssistant: 4\n\nHuman: 2 + 2?\n\nAssistant: 5",
            },
            pair(ASK, ANSWER, ASK),
        ),
        (
            {"conversations": OUTPUTS[:1], "chosen": OUTPUTS[1], "rejected": {"from": "gpt", "value": "5"}},
            pair(ASK),
        ),
    ],
    "kto": [
        ({"prompt": "2 + 2?", "completion": "4", "label": "True"}, UP),
        *(
            (
                {"prompt": "2 + 2?", "completion": "4", "label": label},
                chat(ASK, ANSWER, kind="feedback", label=thumb),
            )
            for label, thumb in (("1", True), (" 0 ", False))
        ),
        (of(ASK, ANSWER, kto_tag=1, label=0), UP),
        ({"conversations": OUTPUTS, "kto_tag": True}, UP),
    ],
    "prompt": [
        ({"prompt": "2 + 2?", "answer": "4"}, chat(ASK, kind="prompt", answer="4")),
    ],
}


@pytest.mark.parametrize(
    ("format", "value", "row"), [(format, *case) for format, cases in READ.items() for case in cases]
)
def test_each_format_gives_the_canonical_form(
    format: str, value: dict[str, Any], row: dict[str, Any]
) -> None:
    assert read(value) == read(value, format) == row
    # the keys too are in their order, of which the id is made
    assert json.dumps(read(value)) == json.dumps(row)


def recognized(root: Path, rows: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, int]]:
    """Run the stage on a file of each format, and return its counts of rows by file and format."""
    files = {f"{name}.jsonl": lines(*values) for name, values in rows.items()}
    project = Project(root, files | {"good.jsonl": lines({"prompt": "a", "completion": "b"})})
    # some of the files have no row that can be read
    report = project.run(source_weights={"good.jsonl": 1.0, "*": 0.0})
    return {name.removesuffix(".jsonl"): report["files"][name]["formats"] for name in files}


def test_every_format_is_recognized(tmp_path: Path) -> None:
    assert (AUTO, set(READ)) == ("auto", set(FORMATS))
    rows = {name: [value for value, _ in cases] for name, cases in READ.items()}
    assert recognized(tmp_path, rows) == {name: {name: len(cases)} for name, cases in READ.items()}


ALIASES = """
human user prompter gpt chatgpt bot model bing bard assistant Assistant tool observation
function function_response system developer
"""


@pytest.mark.parametrize("alias", ALIASES.split())
def test_roles_have_many_names(alias: str) -> None:
    (turn,) = read({"conversations": [{"from": alias, "value": "x"}]})["messages"]
    assert turn["role"] in ("system", "user", "assistant", "tool")
    assert read({"messages": [{"role": alias, "content": "x", "weight": None}]})["messages"] == [turn]


def test_a_format_can_be_demanded() -> None:
    gsm8k = {"question": "2 + 2?", "answer": "#### 4"}
    assert read(gsm8k, "prompt") == chat(ASK, kind="prompt", answer="#### 4")
    assert read({"prompt": "2 + 2?", "completion": "4", "label": "sums"}, "prompt_completion") == chat(
        ASK, ANSWER
    )


@pytest.mark.parametrize(
    ("more", "domain"),
    [
        ({}, "a"),
        ({"domain": "sums"}, "sums"),
        ({"category": " sums "}, "sums"),
        ({"domain": 3, "category": "x" * 65}, "a"),
        ({"domain": "x" * 64}, "x" * 64),
        ({"domain": " "}, "a"),
        ({"domain": "x\ny"}, "a"),
    ],
)
def test_the_domain_is_the_rows_own_where_it_has_one(more: dict[str, Any], domain: str) -> None:
    assert to_row({"messages": [ASK, ANSWER]} | more, source="a.jsonl:1", domain="a")["domain"] == domain


def calls(*calls: Any, role: str = "assistant") -> dict[str, Any]:
    return {"messages": [ASK, {"role": role, "content": "", "tool_calls": list(calls)}]}


def called_with(arguments: Any) -> dict[str, Any]:
    return calls({"function": {"name": "add", "arguments": arguments}})


REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "unknown_format": [
        ({}, "the row has no keys: it is an empty object"),
        (
            {"instruction": "a", "b\n": None},
            "the row has the keys instruction, b (null), and output or response is missing or empty",
        ),
        ({f"{number}{'k' * 50}": 1 for number in range(9)}, f"k…, 5{'k' * 38}… and 3 more, "),
    ],
    "bad_shape": [
        ({"messages": {"role": "user"}}, "messages is an object, not a list"),
        ({"messages": "hello"}, "messages is not a list, nor one as strict JSON (not_json)"),
        (of(ASK, "4"), "messages 2 is text, not an object"),
        ({"instruction": "a", "output": "b", "history": [["c"]]}, "history 1"),
        ({"segments": [{"text": "a"}]}, "segments 1"),
        ({"prompt": "a", "completion": "b", "label": "perhaps"}, "label"),
        ({"conversations": OUTPUTS, "kto_tag": 2}, "kto_tag is neither true nor false"),
        *(
            (of(ASK, ANSWER, score=score), "score is not a finite number")
            for score in ("bad", True, "1e999", "1_0", ".", [1], {"help": 1}, 10**400)
        ),
        (of(ASK, ANSWER, reward="bad", score=1), "reward is not a finite number"),
        ({"chosen": "a", "rejected": "b"}, "chosen is text, and there is no prompt"),
        (
            {"chosen": "a\n\nHuman: b\n\nAssistant: c", "rejected": "b"},
            "chosen is text, and there is no prompt",
        ),
        (of(ASK, ANSWER, tools={"a": 1}), "tools is an object"),
        (of(ASK, ANSWER, tools=["add"]), "tools 1 is text"),
        (of(ASK, ANSWER, tools=[{"type": "web_search"}]), "tools 1 is not a function with a name"),
        *(
            (of(ASK, ANSWER, tools=[tool]), "tools 1 is not a function with a name")
            for tool in ({"type": "retrieval", "name": "add"}, {"name": ""}, {"name": 5})
        ),
        (of(ASK, ANSWER, tools="[{"), "tools is not a list, nor one as strict JSON"),
    ],
    "unsupported_field": [
        ({"prompt": "2 + 2?", "response": "4", "answer": "four"}, "answer would be lost"),
        ({"prompt": "2 + 2?", "chosen": "4", "rejected": "5", "response": "six"}, "response would be lost"),
        (of(ASK, ANSWER, output="5"), "output would be lost"),
        (of(ASK, ANSWER, completion=["4", "5"]), "completion would be lost"),
        ({"text": "2 + 2?", "answer": "4"}, "answer would be lost"),
        (
            {"request": {"input": "2 + 2?"}, "response": [{"type": "response.completed"}]},
            "the answer did not end by itself",
        ),
        *(
            (of(ASK, ANSWER, label=label), "label is a thumb or the number of a class: write true or false")
            for label in (0, 1, 1.0, -1, "0", " 1 ", "-1")
        ),
        (of(ASK, ANSWER, images=["cat.png"]), "images"),
        ({"text": "a", "tools": [TOOL]}, "tools"),
        ({"text": "a", "functions": [ADD]}, "functions"),
        ({"text": "a", "system": "Be brief."}, "system would be lost"),
        ({"segments": [{"text": "a", "label": True}], "history": [["1 + 1?", "2"]]}, "history would be lost"),
        (of(ASK, ANSWER | {"audio": {"id": "x"}}), "messages 2: audio"),
        (of(ASK, ANSWER | {"weight": 0.5}), "messages 2: weight"),
        (of(ASK | {"train": True}, ANSWER), "messages 1: train"),
        (of(ASK | {"training": True}, ANSWER), "messages 1: training"),
        (of(ASK | {"reasoning": "hm"}, ANSWER), "messages 1"),
        *(
            (row | {"history": [["1 + 1?", "2"]]}, "history would be lost")
            for row in (
                of(ASK, ANSWER),
                {"conversations": OUTPUTS},
                {"prompt": "a", "completion": "b"},
                {"prompt": "a", "completion": "b", "label": True},
                {"prompt": "a", "chosen": "b", "rejected": "c"},
                {"prompt": "a", "answer": "b"},
            )
        ),
        ({"prompt": "Who wrote it?", "completion": "b", "context": "A play."}, "context would be lost"),
        ({"prompt": "Sum these.", "chosen": "4", "rejected": "5", "input": "2 and 2"}, "input would be lost"),
    ],
    "too_deep": [  # JSON text in a row, which the reader of the row doesn't look into
        ({"request": {"input": "a"}, "response": f'{{"output": {DEEP}}}'}, "response is nested more than 32"),
        ({"request": f'{{"contents": {DEEP}}}', "response": "4"}, "request is nested more than 32"),
        (
            {"request": {"input": "a"}, "response": f'event: x\ndata: {{"type": "x", "item": {DEEP}}}\n'},
            "response: line 2 is nested more than 32",
        ),
    ],
    "bad_role": [
        (of(ASK, ANSWER | {"role": "wizard"}), "messages 2"),
        (of(ASK, ANSWER | {"role": ["assistant"]}), "messages 2"),
        (of({"content": "a"}, ANSWER), "messages 1"),
    ],
    "content_not_text": [
        (of(ASK, {"role": "assistant"}), "messages 2 is null or missing"),
        (of(ASK | {"content": [{"type": "image", "text": "a"}]}, ANSWER), "messages 1: part 1"),
        ({"instruction": 4, "output": "a"}, "instruction is a number"),
        ({"conversations": OUTPUTS, "system": {"a": 1}}, "system"),
        ({"prompt": "a", "answer": {"value": 4}}, "answer is an object"),
    ],
    "bad_tool_call": [
        (called_with("{'a': 2}"), "messages 2 tool_calls 1 arguments is not strict JSON"),
        (called_with('{"a": 2, "a": 3}'), "(duplicate_key)"),
        (called_with("[2]"), "messages 2 tool_calls 1: arguments want an object"),
        (called_with(json.dumps(json.dumps({"a": 2}))), "arguments want an object"),  # encoded twice
        (calls({"name": ""}), "has no name"),
        (calls({"name": "add", "id": 3}), "id wants text"),
        (calls({"type": "custom", "custom": {"name": "add"}}), "not a call of a function"),
        (calls("add"), "is text, not an object"),
        (calls({"name": "add"}, role="user"), "only the assistant"),
        (
            calls({"name": "add"})
            | of(ANSWER | {"tool_calls": [{"name": "a"}], "function_call": {"name": "a"}}),
            "both",
        ),
        (
            {"conversations": [OUTPUTS[0], {"from": "function_call", "value": "add(2)"}]},
            "conversations 2 is not strict JSON",
        ),
        (
            calls({"name": "add"}) | of({"role": "tool_call", "content": "{}", "tool_calls": [ADD]}),
            "messages 1 is a call, and has tool_calls too",
        ),
    ],
    "no_preference": [({"prompt": "a", "chosen": "b", "rejected": "b"}, "")],
}


@pytest.mark.parametrize(
    ("reason", "value", "words"), [(reason, *case) for reason, cases in REFUSED.items() for case in cases]
)
def test_what_can_not_be_represented_is_refused_with_the_place(
    reason: str, value: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadRow) as caught:
        read(value)
    assert caught.value.code == reason
    assert words in str(caught.value)


def test_many_system_turns_take_linear_time() -> None:
    """A row of 1 MB; with its square it would take minutes."""
    systems = [{"role": "system", "content": str(number)} for number in range(20_000)]
    more = [{"role": "system", "content": f"x{number}"} for number in range(20_000)]
    start = time.process_time()
    row = to_row(
        {"prompt": systems, "chosen": [*more, ANSWER], "rejected": [*more, WRONG]},
        source="a.jsonl:1",
        domain="a",
    )
    assert time.process_time() - start < 3  # linear: 0.3 s
    assert row["messages"] == systems + more
    row = to_row(
        {"prompt": [SYSTEM, *systems[:2]], "chosen": [*systems, ANSWER], "rejected": [*systems, WRONG]},
        source="a.jsonl:1",
        domain="a",
    )
    assert row["messages"] == [SYSTEM, *systems]


def test_another_format_than_the_one_demanded_is_refused() -> None:
    with pytest.raises(BadRow) as caught:
        read({"prompt": "a", "completion": "b"}, "messages")
    assert caught.value.code == "wrong_format"


@given(ROWS)
def test_canonical_rows_are_read_as_they_are(made: dict[str, Any]) -> None:
    if made["kind"] == "preference" and made["chosen"][0] == made["rejected"][0]:
        return  # what both share moves into the prompt
    if made["kind"] == "prompt" and made["messages"][-1]["role"] != "user":
        return  # an answer beside a whole chat is no prompt's
    assert to_row(made, source=made["source"], domain="b") == {
        key: value for key, value in made.items() if key != "id"
    }


KEYS = "role from content value text type function name arguments tool_calls function_call weight train id"
WORDS = st.sampled_from(["", "user", "gpt", "function_call", "{}", "[1]", "x"])
SCRAPS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS.split()), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(
    st.dictionaries(
        st.sampled_from(
            sorted({key for cases in READ.values() for value, _ in cases for key in value} | {"reward"})
        ),
        SCRAPS,
        max_size=6,
    )
)
def test_any_json_gives_a_canonical_row_or_a_reason(value: dict[str, Any]) -> None:
    try:
        row = to_row(value, source="a.jsonl:1", domain="a")
    except BadRow as why:
        assert re.fullmatch(r"[a-z_]+", why.code)
        assert str(why)
        return
    check_row({"id": row_id(row), **row})


def test_what_the_docs_say_is_true(tmp_path: Path) -> None:
    page = (PROJECT / "docs/data-formats.md").read_text(encoding="utf-8")
    section = page.partition("## What is read")[2].partition("\n## ")[0]
    order = re.search(r"the first in this order is taken: ([^.]*)", section)
    names = re.findall("`([a-z_]+)`", order[1]) if order else []
    found = re.findall(r"^\*\*([a-z_]+)\*\*.*?```json\n(.*?)\n```", section, re.DOTALL | re.MULTILINE)
    shown = {name: [json.loads(line) for line in example.splitlines()] for name, example in found}
    assert shown.keys() == set(names) == set(FORMATS)
    assert recognized(tmp_path / "each", shown) == {name: {name: len(rows)} for name, rows in shown.items()}
    pairs = {f"{one}-{other}": [shown[other][0] | shown[one][0]] for one, other in combinations(names, 2)}
    assert recognized(tmp_path / "both", pairs) == {both: {both.partition("-")[0]: 1} for both in pairs}
    for row in (row for rows in shown.values() for row in rows):
        read(row)


def test_the_row_that_the_docs_show_is_canonical() -> None:
    page = (PROJECT / "docs/data-formats.md").read_text(encoding="utf-8")
    check_row(json.loads(page.partition("## What comes out")[2].partition("```json\n")[2].partition("\n")[0]))
