"""cleaning: text in composed form, turns in order; what is repaired is noted, what can't be is rejected."""

import re
import time
import unicodedata
from typing import Any

import pytest
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.chat.rows import BadRow, Row, texts
from pipeline.stages.curate.rules.shape import normalize, turns

Changes = list[Any]


def conversation(script: str) -> list[dict[str, Any]]:
    """Turns from a script such as "s:be brief u:hi a:hello c: t:5": system, user, assistant, call, tool; a
    trailing ! is not trained.
    """
    roles = {"s": "system", "u": "user", "a": "assistant", "c": "assistant", "t": "tool", "r": "assistant"}
    made: list[dict[str, Any]] = []
    for word in script.split():
        letter, _, content = word.partition(":")
        turn: dict[str, Any] = {
            "role": roles[letter],
            "content": content.removesuffix("!").replace("_", " ").replace("+", "\n\n"),
        }
        if letter == "c":
            turn["tool_calls"] = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
        if letter == "r":
            turn["reasoning_content"] = "because"
        made.append(turn | ({"train": False} if content.endswith("!") else {}))
    return made


def row(script: str, kind: str = "chat", **more: str) -> Row:
    return {"source": "a:1", "kind": kind, "domain": "d", "messages": conversation(script)} | {
        side: conversation(text) for side, text in more.items()
    }


GOOD = [
    row("u:hi a:hello"),
    row("s:be u:hi a:hello u:x a:y"),
    row("s: u:hi a:hello"),  # a system turn may say nothing: it keeps templates from putting in their own
    row("u:x c: t:5 a:five"),
    row("u:x c:look t:5 t: c: t:6 a:eleven u:y a:z"),
    row("u:x c:"),  # a call can be what is learned
    row("u:x a:y! u:z a:w"),
    row("u:x r:y u:z r:w"),
    row("u:x a:y", "feedback") | {"label": False},
    row("u:x", "prompt") | {"answer": "4"},
    row("s:be u:x c: t:5", "prompt") | {"answer": "4"},
    row("u:x", "preference", chosen="a:y", rejected="a:z u:w a:v"),
    row("u:x c: t:5", "preference", chosen="a:y", rejected="c: t:6 a:z"),
    {
        "source": "a:1",
        "kind": "text",
        "domain": "d",
        "messages": [],
        "segments": [{"text": "a", "train": False}, {"text": "b", "train": True}],
    },
]

REPAIRED = [
    ("u:a u:b a:c", "u:a+b a:c"),
    ("u:a a:b a:c", "u:a a:b+c"),
    ("u:a u:b u:c a:d u:e u:f a:g", "u:a+b+c a:d u:e+f a:g"),
    ("u:a u: a:b", "u:a a:b"),
    ("u: u:a a:b", "u:a a:b"),
    ("s:a s:b u:c a:d", "s:a+b u:c a:d"),
    ("s: s:b u:c a:d", "s:b u:c a:d"),
    ("u:a a:b u:c", "u:a a:b"),
    ("u:a a:b u:", "u:a a:b"),
    ("u:a a:b u:c a:", "u:a a:b"),
    ("u:a a:b a:", "u:a a:b"),
    ("u:a a:b a:_", "u:a a:b"),
    ("u:a c: t:5", "u:a c:"),
    ("u:a a:b u:c c: t:5 a:", "u:a a:b u:c c:"),
    ("u:a a:b s:c", "u:a a:b"),
    ("u:a a:b! a:c! u:d a:e", "u:a a:b+c! u:d a:e"),
    ("u:a u:b c: t:1 t:2 a:c", "u:a+b c: t:1 t:2 a:c"),
    ("u:a a:b c: t:5 a:c", "u:a c:b t:5 a:c"),
    ("u:a a:b a:c c:d t:5 a:e", "u:a c:b+c+d t:5 a:e"),
]

# a row, the reason, and what its detail begins with
BAD = [
    (row("a:hello u:hi a:x"), "bad_order", "messages 1 is assistant"),
    (row("u:a s:b a:c"), "bad_order", "messages 2 is system"),
    (row("u:a t:5 a:c"), "bad_order", "messages 2 is tool"),
    (row("u:a a:b t:5 a:c"), "bad_order", "messages 3 is tool"),
    (row("u:a c: u:b a:c"), "bad_order", "messages 3 is user"),
    (row("u:a c: t:5 u:b a:c"), "bad_order", "messages 4 is user"),
    (row("u:a c: a:b"), "bad_order", "messages 3 is assistant"),
    (row("u:a a:b r:c"), "bad_order", "messages 3 is assistant"),
    (row("u:a r:b r:b"), "bad_order", "messages 3 is assistant"),
    (row("u:a a:b! a:c"), "bad_order", "messages 3 is assistant"),
    (row("u:a a:b! c: t:5 a:d"), "bad_order", "messages 3 is assistant"),
    (row("u:a c: c:late t:5 a:b"), "bad_order", "messages 3 is assistant"),
    (row("u:a a: u:b a:c"), "empty_turn", "messages 2 "),
    (row("u: a:b"), "empty_turn", "messages 1 "),
    (row("u:a r:"), "empty_turn", "messages 2 "),
    (row("u:a u:b"), "no_assistant", "messages "),
    (row("s:a"), "no_assistant", "messages "),
    (row(""), "no_assistant", "messages "),
    (row("u:a a:b!"), "nothing_to_train", ""),
    (row("u:a", "feedback") | {"label": True}, "no_assistant", "messages "),
    (row("u:a a:b", "prompt") | {"answer": ""}, "bad_order", "the last turn "),
    (row("", "prompt") | {"answer": ""}, "bad_order", "the last turn "),
    (row("u:a a:b", "preference", chosen="a:c", rejected="a:d"), "bad_order", "the last turn "),
    (row("u:a", "preference", chosen="", rejected="a:d"), "no_assistant", "chosen "),
    (row("u:a", "preference", chosen="a:b", rejected="u:c a:d"), "bad_order", "rejected 1 is user"),
    (row("u:a", "preference", chosen="a:b", rejected="a:"), "empty_turn", "rejected 1 "),
    (row("u:a", "preference", chosen="a:b!", rejected="a:c"), "nothing_to_train", ""),
    (row("", "text") | {"segments": []}, "empty_turn", ""),
    (row("", "text") | {"segments": [{"text": " \n", "train": True}]}, "empty_turn", ""),
    (row("", "text") | {"segments": [{"text": "a", "train": False}]}, "nothing_to_train", ""),
]


@pytest.mark.parametrize("good", GOOD)
def test_what_is_in_order_stays(good: Row) -> None:
    for mode in ("repair", "reject"):
        changes: Changes = []
        assert turns(mode)(good, changes) is good  # type: ignore[arg-type]
        assert not changes


@pytest.mark.parametrize(("script", "repaired"), REPAIRED)
def test_what_can_be_repaired_is_and_noted(script: str, repaired: str) -> None:
    changes: Changes = []
    assert turns("repair")(row(script), changes)["messages"] == conversation(repaired)
    gone = sum(
        int(found[1]) if (found := re.search(r"‹and (\d+) more turn", change.before)) else 1
        for change in changes
    )
    assert gone == len(conversation(script)) - len(conversation(repaired))
    assert {change.rule for change in changes} == {"turns"}
    with pytest.raises(BadRow) as caught:
        turns("reject")(row(script), [])
    assert caught.value.code in ("bad_order", "empty_turn")


@pytest.mark.parametrize(("bad", "code", "detail"), BAD)
def test_what_can_not_be_repaired_is_rejected(bad: Row, code: str, detail: str) -> None:
    with pytest.raises(BadRow) as caught:
        turns("repair")(bad, [])
    assert caught.value.code == code and str(caught.value).startswith(detail)
    with pytest.raises(BadRow):
        turns("reject")(bad, [])


def test_answers_of_a_preference_are_repaired_each_for_itself() -> None:
    bad = row("u:a u:b", "preference", chosen="a:c a:d u:e", rejected="a:f u:g a:")
    changes: Changes = []
    repaired = turns("repair")(bad, changes)
    assert repaired | {"source": ""} == row("u:a+b", "preference", chosen="a:c+d", rejected="a:f") | {
        "source": ""
    }
    assert [change.place for change in changes] == [
        "messages 1",
        "chosen 3",
        "chosen 1",
        "rejected 2",
        "rejected 3",
    ]


@pytest.mark.parametrize(
    ("script", "notes"),
    [
        (
            "u:one u:two a:three u:four",
            [("messages 4", "four", ""), ("messages 1", "one ‹and 1 more turn›", "one\n\ntwo")],
        ),
        ("u:a a:b t:5 a:", [("messages 3", "5", ""), ("messages 4", "", "")]),
    ],
)
def test_a_note_shows_what_was_joined_or_dropped(script: str, notes: list[tuple[str, str, str]]) -> None:
    turns("repair")(row(script), changes := [])
    assert [(change.place, change.before, change.after) for change in changes] == notes


TURN = st.tuples(st.sampled_from("suactr"), st.sampled_from(["", " ", "hi", "é"]), st.booleans()).map(
    lambda drawn: conversation(f"{drawn[0]}:{drawn[1].replace(' ', '_')}{'!' if drawn[2] else ''}")[0]
)
TURNS = st.lists(TURN, max_size=7)
ROWS = st.one_of(
    TURNS.map(lambda messages: row("") | {"messages": messages}),
    TURNS.map(lambda messages: row("", "feedback") | {"messages": messages, "label": True}),
    TURNS.map(lambda messages: row("", "prompt") | {"messages": messages, "answer": "4"}),
    st.tuples(TURNS, TURNS, TURNS).map(
        lambda drawn: (
            row("", "preference") | dict(zip(("messages", "chosen", "rejected"), drawn, strict=True))
        )
    ),
)


@settings(max_examples=draws(400))
@given(drawn=ROWS)
def test_whatever_comes_is_in_order_or_rejected_and_all_that_is_said_is_kept_or_noted(drawn: Row) -> None:
    changes: Changes = []
    try:
        repaired = turns("repair")(drawn, changes)
    except BadRow as error:
        assert error.code in ("bad_order", "empty_turn", "no_assistant", "nothing_to_train")
        return
    assert turns("reject")(repaired, []) is repaired
    assert turns("repair")(repaired, []) is repaired
    for field in ("messages", "chosen", "rejected"):
        if field in drawn:
            dropped = {change.place for change in changes if not change.after}
            output = "".join(
                turn["content"]
                for number, turn in enumerate(drawn[field], start=1)
                if f"{field} {number}" not in dropped
            )
            assert "".join("".join(turn["content"] for turn in repaired[field]).split()) == "".join(
                output.split()
            )


def spoken(text: str) -> Row:
    return row("") | {"messages": [{"role": "user", "content": text}]}


def notes_of(spoken: Row) -> Changes:
    normalize(spoken, changes := [])
    return changes


@pytest.mark.parametrize(
    ("text", "composed"),
    [
        ("plain", None),
        ("caf\u00e9 – “x” 東京 🙂", None),
        ("cafe\u0301", "caf\u00e9"),
        ("\u1112\u1161\u11ab", "한"),
        ("\u212b", "\u00c5"),
        ("ﬁ ① ｘ", None),
    ],
)
def test_text_is_composed(text: str, composed: str | None) -> None:
    before, changes = spoken(text), list[Any]()
    after = normalize(before, changes)
    if composed is None:
        assert after is before
        assert not changes
    else:
        assert after["messages"] == [{"role": "user", "content": composed}]
        assert [(change.rule, change.place, change.before, change.after) for change in changes] == [
            ("normalize", "messages 1", text, composed)
        ]


@settings(max_examples=draws(200))
@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    mark=st.sampled_from(["", "\u0301", "\u0338", "\u11a8"]),
)
def test_composing_reaches_every_text_and_once_is_enough(text: str, mark: str) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {text + mark: [text + mark]}}}
    messages = [
        {"role": "assistant", "content": text + mark, "reasoning_content": text + mark, "tool_calls": [call]}
    ]
    before = row("") | {
        "messages": messages,
        "tools": [{"description": text + mark}],
        "answer": text + mark,
        "segments": [{"text": text + mark}],
    }
    after = normalize(before, [])
    assert all(unicodedata.is_normalized("NFC", words) for _, words in texts(after))
    assert normalize(after, []) is after


LINE = 1 << 20  # bytes, a quarter of the longest line
ENDLESS = {"marks out of order", "marks made of marks"}
HOSTILE = {
    "a long run of users": [("user", "hi")] * (LINE // 40) + [("assistant", "x")],
    "a run that grows": [("user", "a" * 800)] * 5000 + [("assistant", "x")],
    "a long tail": [("user", "hi"), ("assistant", "x"), ("user", "a"), ("system", "b")]
    + [("user", "hi")] * (LINE // 40),
    "empty answers": [("user", "a")] + [("assistant", "")] * (LINE // 40) + [("assistant", "x")],
    "marks out of order": [("user", "a"), ("assistant", "a" + "\u0301\u0323" * (LINE // 4))],
    "marks made of marks": [("user", "a"), ("assistant", "a" + "\u0f73" * (LINE // 3))],
    "marks just short of too many": [
        ("user", "a"),
        ("assistant", ("a" + "\u0301\u0323" * 31) * (LINE // 126)),
    ],
    "all to be composed": [
        ("user", "e\u0301" * (LINE // 3)),
        ("assistant", "\u1112\u1161\u11ab" * (LINE // 27)),
    ],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_line_takes_long(name: str) -> None:
    bad = row("") | {"messages": [{"role": role, "content": content} for role, content in HOSTILE[name]]}

    def clean() -> tuple[Any, Changes]:
        changes: Changes = []
        try:
            return turns("repair")(normalize(bad, changes), changes)["messages"], changes
        except BadRow as error:
            return error.code, changes

    start = time.process_time()
    first = clean()
    assert time.process_time() - start < 3  # half a second on an idle core at most
    assert clean() == first
    assert (first[0] == "endless_marks") == (name in ENDLESS)


def rejected(text: str) -> bool:
    try:
        normalize(spoken(text), [])
    except BadRow as error:
        assert error.code == "endless_marks"
        return True
    return False


def test_endless_marks_are_found_wherever_they_begin() -> None:
    """64 on one character are too many; also of marks that are made of marks."""
    for code in range(0x110000):
        parts = unicodedata.normalize("NFD", chr(code))
        if unicodedata.combining(parts[0]) and not unicodedata.combining(chr(code)):
            assert rejected("x" + chr(code) * 64)
    for start in range(130):
        assert rejected("x" * start + "\u0301" * 64 + "x")
        assert not rejected("x" * start + ("\u0301" * 63 + "x") * 3)
    assert rejected("x" + "\u0334" * 64)  # of the lowest class that a mark may have


@given(before=st.text("aé🙂", max_size=400), after=st.text("aé🙂", max_size=400))
def test_a_note_shows_the_first_difference(before: str, after: str) -> None:
    [change] = notes_of(spoken(f"{before}e\u0301{after}"))
    assert len(change.before) <= 162 and len(change.after) <= 162
    shown = change.before.strip("…")
    assert "e\u0301" in shown and "é" in change.after
    assert shown in f"{before}e\u0301{after}"
