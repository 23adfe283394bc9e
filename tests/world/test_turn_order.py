"""Decisions that depend on the base's chat template: orders of turns that some templates show and some
refuse, and calls as text.
"""

from pathlib import Path
from typing import Any

import pytest
from curating import Project, lines
from tokenizer_folders import smollm_folder

from pipeline.stages.curate.rules.length import Length

TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
CHATML = "{% for m in messages %}" + TURN + "{% endfor %}"
HOISTING = (  # system turns come first, wherever they stand
    "{% for m in messages if m.role == 'system' %}"
    + TURN
    + "{% endfor %}{% for m in messages if m.role != 'system' %}"
    + TURN
    + "{% endfor %}"
)
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
    + TURN
    + "{% endfor %}"
)
CALLS = (
    "{{ tools | tojson if tools }}{% for m in messages %}{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
)


def script(words: str) -> list[dict[str, Any]]:
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool", "c": "assistant"}
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": "y"}}}
    made = []
    for place, letter in enumerate(words):
        turn: dict[str, Any] = {"role": roles[letter], "content": f"turn {place}"}
        made.append(turn | ({"tool_calls": [call]} if letter == "c" else {}))
    return made


def project(root: Path, template: str | None, *rows: list[dict[str, Any]]) -> Project:
    made = Project(root, {"a.jsonl": lines(*({"messages": messages} for messages in rows))})
    if template is not None:
        folder = smollm_folder(root / "models/base")
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return made


GREETING, SYSTEM, INTERRUPTED = "auaua", "uasua", "uctua"


def kept(made: Project, **settings: Any) -> list[list[dict[str, Any]]]:
    made.run(drop_duplicates="none", **settings)
    return [row["messages"] for row in made.rows()]


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (None, {GREETING, SYSTEM, INTERRUPTED}),  # without a base there is nobody to refuse them
        (CALLS, {GREETING, SYSTEM, INTERRUPTED}),
        (HOISTING, {GREETING, INTERRUPTED}),
        (STRICT, set()),
    ],
    ids=["no base", "all", "hoisting", "strict"],
)
@pytest.mark.parametrize("order", [GREETING, SYSTEM, INTERRUPTED])
def test_unusual_orders_are_kept_if_the_template_shows_them(
    tmp_path: Path, order: str, template: str | None, shown: set[str]
) -> None:
    made = project(tmp_path, template, script(order), script("ua"))
    rows = kept(made)
    if order in shown:
        turns = script(order)
        if order == GREETING:  # nobody asked for it
            turns[0]["train"] = False
        assert rows == [turns, script("ua")]
    else:
        assert rows == [script("ua")]
        assert [entry["reason"] for entry in made.rejects()] == ["bad_order"]


@pytest.mark.parametrize("order", ["saua", "usa", "usua", "auasua", "sausa"])
def test_greetings_and_system_turns_in_other_places(tmp_path: Path, order: str) -> None:
    made = project(tmp_path, None, script(order), script("ua"))
    rows = kept(made)
    if order == "usua":  # two turns of the user, of which no template expects two
        assert rows == [script("ua")]
        return
    assert [turn["content"] for turn in rows[0]] == [turn["content"] for turn in script(order)]


def test_without_repair_the_order_is_strict(tmp_path: Path) -> None:
    made = project(tmp_path, None, script(GREETING), script(SYSTEM), script(INTERRUPTED), script("ua"))
    assert kept(made, repair=[]) == [script("ua")]
    assert {entry["reason"] for entry in made.rejects()} == {"bad_order"}


@pytest.mark.parametrize(
    "messages", [script("a"), script("sa"), script("cua"), script("uas")[:2] + script("s")]
)
def test_what_no_order_has_stays_out(tmp_path: Path, messages: list[dict[str, Any]]) -> None:
    made = project(tmp_path, None, messages, script("ua"))
    rows = kept(made)
    tail_dropped = [turn["role"] for turn in messages] == ["user", "assistant", "system"]
    assert rows == ([script("ua")] * 2 if tail_dropped else [script("ua")])


CALL_AS_TEXT = [
    {"role": "system", "content": 'Tools: <tools>[{"name": "f", "parameters": {"type": "object"}}]</tools>'},
    {"role": "user", "content": "Call f."},
    {"role": "assistant", "content": '<tool_call>\n{"name": "f", "arguments": {"x": "y"}}\n</tool_call>'},
]


def test_a_call_stays_text_if_the_template_shows_no_calls(tmp_path: Path) -> None:
    """SmolLM2's template has neither tools nor calls: as calls, all rows would be lost."""
    assert kept(project(tmp_path, CHATML, CALL_AS_TEXT)) == [CALL_AS_TEXT]


def test_a_call_becomes_one_if_the_template_shows_calls(tmp_path: Path) -> None:
    made = project(tmp_path, CALLS, CALL_AS_TEXT)
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": "y"}}}
    assert kept(made) == [
        [CALL_AS_TEXT[1], {"role": "assistant", "content": "", "tool_calls": [call]}],
    ]
    assert made.rows()[0]["tools"] == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    ]


def test_parts_of_a_long_row_keep_greeting_and_system_turns_with_their_exchange(tmp_path: Path) -> None:
    folder = smollm_folder(tmp_path / "base")
    (folder / "chat_template.jinja").write_text(CALLS, encoding="utf-8")
    turns = script("auauasuauctua")
    for turn in turns:
        turn["content"] += " word" * 20
    row = {"source": "a:1", "kind": "chat", "domain": "d", "messages": turns}
    parts = Length(folder, 200, "split").parts(row, [])
    roles = ["".join(turn["role"][0] for turn in part["messages"]) for part in parts]
    assert roles == ["auaua", "sua", "uatua"]
