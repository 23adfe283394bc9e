"""curate.overlong: truncate: what is left of a row fits, is a part of it, and holds whole turns and calls."""

import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]
from canonical import ROWS, check_row
from curating import Project, lines
from draws import draws
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_length import BUDGET, CHATS, HOSTILE, TOOLS, WORDS, call, chat, exchanges_of, turn
from tokenizer_folders import qwen_folder, smollm_folder

from pipeline.chat.rows import SIDES, BadRow, Row
from pipeline.chat.tokens import encode, load_tokenizer
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.curate.rules.length import Length

FOX = "The quick brown fox jumps over the lazy dog. It runs far away! Does it come back?\n\n"
ENDS: list[Any] = ["end", "beginning"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smollm_folder(tmp_path_factory.mktemp("base") / "smollm")


@pytest.fixture(scope="module")
def rules(folder: Path) -> dict[str, Length]:
    """A rule for each end that is cut, with one tokenizer."""
    made = {end: Length(folder, BUDGET, "truncate", end) for end in ENDS}
    made["beginning"].counter = made["end"].counter  # type: ignore[misc]
    return made


def with_budget(rule: Length, most: int) -> Length:
    other = Length(rule.folder, most, "truncate", rule.cut)
    other.counter = rule.counter  # type: ignore[misc]
    return other


def one(rule: Length, row: Row, changes: list[Any] | None = None) -> Row:
    [kept] = rule.parts(row, [] if changes is None else changes)
    return kept


def uncut(turns: list[Any]) -> list[Any]:
    return [{key: value for key, value in turn.items() if key != "cut"} for turn in turns]


def boundaries(text: str) -> set[int]:
    """The places between characters with all their marks."""
    return {0, *(match.end() for match in regex.finditer(r"\X", text))}


def check_text(before: str, after: str, cut: str) -> None:
    """Prove that `after` is what is left of `before`, and ends at a border between characters."""
    assert after.strip() and len(after) < len(before)
    stripped = before.rstrip() if cut == "end" else before.lstrip()
    place = len(stripped) if cut == "end" else 0
    for place in sorted(boundaries(before)):
        rest = before[:place] if cut == "end" else before[place:]
        if after in (rest, rest.strip()):
            return
    raise AssertionError((before, after, place))


def long(text: str) -> str:
    return text * 20


PIECES = WORDS | st.sampled_from(
    [
        long(FOX),
        long("🇩🇪🇫🇷"),
        long("👩‍💻"),
        long("e\u0301\u0323"),
        long("นี่คือ"),
        long("0123456789"),
        long("한국어"),
    ]
)
ASKED = st.tuples(PIECES, PIECES).map(lambda said: [turn("user", said[0]), turn("assistant", said[1])])
CALLED = st.tuples(PIECES, PIECES).map(
    lambda said: [
        turn("user", said[0]),
        turn("assistant", "", tool_calls=call(a="1")),
        turn("tool", said[1]),
        turn("assistant", said[0], reasoning_content="so"),
    ]
)
LONG_CHATS = st.tuples(
    st.none() | WORDS, st.lists(ASKED | CALLED, min_size=1, max_size=5), st.booleans(), st.booleans()
).map(
    lambda drawn: chat(
        *([] if drawn[0] is None else [turn("system", drawn[0])]),
        *chain.from_iterable(drawn[1]),
        **({"tools": TOOLS} if drawn[2] else {}),
        **({"reward": 1.0} if drawn[3] else {}),
    )
)


@settings(max_examples=draws(200))
@given(row=LONG_CHATS | CHATS, budget=st.integers(30, 250), end=st.sampled_from(ENDS))
def test_a_chat_keeps_its_system_turn_and_its_newest_turns(
    rules: dict[str, Length], row: Row, budget: int, end: str
) -> None:
    rule, changes = with_budget(rules[end], budget), list[Any]()
    system, exchanges = exchanges_of(row)
    fits = rule.counter.count_row(row) <= budget
    try:
        kept = one(rule, row, changes)
    except BadRow as why:
        assert why.code == "over_budget" and not fits
        return
    if fits:
        assert kept == row and not changes and not rule.take_counts()
        return
    assert rule.counter.count_row(kept) <= budget
    assert kept["source"] == f"{row['source']}#cut"
    left_system, left = exchanges_of(kept)
    assert left_system == system
    newest = exchanges[-len(left) :]
    texts = 0
    for before, after in zip(chain.from_iterable(newest), chain.from_iterable(left), strict=True):
        assert before | {"content": ""} == uncut([after])[0] | {"content": ""}  # calls are whole
        if "cut" in after:
            texts += 1
            assert len(left) == 1
            is_answer = after["role"] == "assistant" and after.get("train", True)
            assert after["cut"] == (end if is_answer else "beginning")
            check_text(before["content"], after["content"], after["cut"])
        else:
            assert after == before
    counts = rule.take_counts()
    assert counts["truncated"] == 1 and counts["texts_cut"] == texts
    assert counts["exchanges_left_out"] == len(exchanges) - len(left)
    assert len(changes) == texts + (len(left) < len(exchanges)) + 1
    assert one(rule, {**kept}, []) == kept
    if len(left) < len(exchanges) and not texts:  # as many as fit
        more = system + list(chain.from_iterable(exchanges[-len(left) - 1 :]))
        assert rule.counter.count_row(row | {"messages": more}) > budget


@settings(max_examples=draws(200))
@given(row=ROWS, budget=st.integers(16, 120), end=st.sampled_from(ENDS))
def test_rows_of_all_kinds_fit_or_are_named(
    rules: dict[str, Length], row: Row, budget: int, end: str
) -> None:
    rule = with_budget(rules[end], budget)
    try:
        kept = one(rule, row)
    except BadRow as error:
        assert error.code in ("over_budget", "template_refuses", "no_preference")
        return
    assert rule.truncation.tokens(kept) <= budget
    check_row(kept)


@settings(max_examples=draws(100))
@given(asked=PIECES, chosen=PIECES, rejected=PIECES, budget=st.integers(60, 250), end=st.sampled_from(ENDS))
def test_both_answers_of_a_pair_fit_together_and_stay_different(
    rules: dict[str, Length], asked: str, chosen: str, rejected: str, budget: int, end: str
) -> None:
    assume(chosen != rejected)
    row = chat(
        turn("user", asked),
        kind="preference",
        chosen=[turn("assistant", chosen)],
        rejected=[turn("assistant", rejected)],
    )
    rule = with_budget(rules[end], budget)
    try:
        kept = one(rule, row)
    except BadRow as error:
        assert error.code in ("over_budget", "no_preference")
        return
    texts = rule.counter.template.rendered(kept)
    assert sum(map(rule.counter.count_by_tokenizer, texts)) <= budget
    assert uncut(kept["chosen"]) != uncut(kept["rejected"])
    lengths = {len(kept[side][0]["content"]) for side in SIDES if "cut" in kept[side][0]}
    whole = [len(row[side][0]["content"]) for side in SIDES if "cut" not in kept[side][0]]
    assert not lengths or all(length <= 2 * max(lengths) + 64 for length in whole)  # cut alike


SYSTEM = turn("system", "Be brief.")
CASES = {
    "an answer": (chat(SYSTEM, turn("user", "Who?"), turn("assistant", long(FOX))), ["messages 3"]),
    "a question": (
        chat(SYSTEM, turn("user", f"{long(FOX)} Sum up."), turn("assistant", "A fox.")),
        ["messages 2"],
    ),
    "a result": (
        chat(
            turn("user", "Read it."),
            turn("assistant", "", tool_calls=call(a="f")),
            turn("tool", long(FOX)),
            turn("assistant", "Done."),
            tools=TOOLS,
        ),
        ["messages 3"],
    ),
    "behind others": (
        chat(*[turn("user", "Hi."), turn("assistant", "Hello.")] * 2, turn("user", "Who?"))
        | {
            "messages": [
                *[turn("user", "Hi."), turn("assistant", "Hello.")] * 2,
                turn("user", "Who?"),
                turn("assistant", long(FOX)),
            ]
        },
        ["messages 1 to 4", "messages 6"],
    ),
    "a scored answer": (chat(turn("user", "Who?"), turn("assistant", long(FOX)), reward=0.5), ["messages 2"]),
    "several references": (
        chat(turn("user", "Who?"), turn("assistant", long(FOX)), other_references=["A fox."]),
        ["messages 2"],
    ),
    "a thumb": (
        chat(turn("user", "Who?"), turn("assistant", long(FOX)), kind="feedback", label=True),
        ["messages 2"],
    ),
    "a prompt": (chat(turn("user", f"{long(FOX)} Sum up."), kind="prompt", answer="A fox."), ["messages 1"]),
    "a text": (chat(kind="text", segments=[{"text": long(FOX), "train": True}]), ["segments 1"]),
    "segments": (
        chat(
            kind="text",
            segments=[
                {"text": long(FOX), "train": False},
                {"text": long(FOX), "train": True},
                {"text": "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n", "train": False},
                {"text": "A fox.<|im_end|>", "train": True},
            ],
        ),
        ["segments 1 to 2"],
    ),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", CASES)
def test_every_kind_is_cut_and_every_cut_is_noted(rules: dict[str, Length], name: str, end: str) -> None:
    row, places = CASES[name]
    changes = list[Any]()
    kept = one(rules[end], row, changes)
    assert rules[end].truncation.tokens(kept) <= BUDGET
    assert [change.place for change in changes[:-1]] == places
    assert {change.rule for change in changes} == {"length"}
    for key in ("answer", "other_references", "tools", "reward", "label"):
        assert kept.get(key) == row.get(key)


def test_what_is_asked_keeps_its_end(rules: dict[str, Length]) -> None:
    for rule in rules.values():
        [asked] = [said for said in one(rule, CASES["a question"][0])["messages"] if said["role"] == "user"]
        assert asked["content"].endswith("Sum up.") and asked["cut"] == "beginning"


def test_a_cut_text_does_not_teach_its_end(rules: dict[str, Length], folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    for name in ("an answer", "a text"):
        row, _ = CASES[name]
        taught = {}
        for end, rule in rules.items():
            [(_, [encoded])] = encode(tokenizer, [one(rule, row)])
            taught[end] = tokenizer.eos_token_id in encoded.labels
        assert taught == {"end": False, "beginning": True}, name


@pytest.mark.parametrize(
    "row",
    [
        chat(turn("system", long(FOX)), turn("user", "Who?"), turn("assistant", "A fox.")),
        chat(turn("user", "Who?"), turn("assistant", f"<think>{long(FOX)}</think>A fox.")),
        chat(turn("user", "Who?"), turn("assistant", f"<tool_call>{long(FOX)}</tool_call>")),
        chat(turn("user", "Who?"), kind="prompt", answer=long(FOX)),
        chat(turn("user", "Who?"), turn("assistant", long(FOX), train=False), turn("user", "And?")),
        chat(*[turn("user", "?"), turn("assistant", "!", train=False)] * 40),
    ],
)
def test_what_can_not_be_cut_is_rejected(rules: dict[str, Length], row: Row) -> None:
    for made in rules.values():
        rule = with_budget(made, BUDGET)
        with pytest.raises(BadRow) as caught:
            rule.parts(row, [])
        assert caught.value.code == "over_budget"
        assert not rule.take_counts()


def test_a_call_is_whole_or_its_exchange_goes(tools: Toolchain, tmp_path: Path) -> None:
    rule = Length(qwen_folder(tmp_path / "qwen", tools), BUDGET, "truncate")
    calling = [turn("user", "Who?"), turn("assistant", "", tool_calls=call(a=long(FOX)))]
    with pytest.raises(BadRow, match="no text in it can be cut"):
        rule.parts(chat(*calling), [])
    after = [*calling, turn("tool", "x"), turn("assistant", "y"), turn("user", "?"), turn("assistant", "!")]
    assert one(rule, chat(*after))["messages"] == after[-2:]


def test_no_control_token_is_torn(rules: dict[str, Length]) -> None:
    marks = [{"text": "<|im_start|>" * 400, "train": False}, {"text": "ok", "train": True}]
    kept = one(rules["end"], chat(kind="text", segments=marks))
    assert kept["segments"][0]["text"].replace("<|im_start|>", "") == ""


@pytest.mark.parametrize("name", HOSTILE)
def test_no_line_takes_long(rules: dict[str, Length], name: str) -> None:
    row, rule = HOSTILE[name](), with_budget(rules["end"], 1024)
    start = time.process_time()
    try:
        assert rule.truncation.tokens(one(rule, row)) <= 1024
    except BadRow as error:
        assert error.code == "over_budget"
    assert time.process_time() - start < 3


def test_cuts_are_counted_and_shown(tmp_path: Path) -> None:
    old = [turn("user", "Old?"), turn("assistant", "Yes. " * 60)]
    rows = [
        {"messages": [*old, turn("user", "Who?"), turn("assistant", long(FOX))]},
        {"messages": [turn("user", "Short?"), turn("assistant", "Yes.")]},
    ]
    project = Project(tmp_path, {"a.jsonl": lines(*rows)})
    smollm_folder(tmp_path / "models/base")
    report = project.run(max_tokens=100, overlong="truncate")
    assert report["length"] == {"split": 0, "truncated": 1, "exchanges_left_out": 1, "texts_cut": 1}
    assert sorted(row["source"] for row in project.rows()) == ["a.jsonl:1#cut", "a.jsonl:2"]
    page = project.outputs()["reports/data.html"].decode()
    assert "1 row was longer than preprocess.max_length and lost 1 old exchange and a part of 1 text." in page


def test_an_exchange_that_does_not_fit_is_counted(tmp_path: Path) -> None:
    turns = [turn("user", "Who?"), turn("assistant", "A fox. " * 12)] * 4
    turns[3] = turn("assistant", long(FOX))
    project = Project(tmp_path, {"a.jsonl": lines({"messages": turns})})
    smollm_folder(tmp_path / "models/base")
    report = project.run(max_tokens=100, drop_duplicates="none")
    assert report["length"]["exchanges_left_out"] == 1
    assert "1 exchange of long conversations did not fit" in project.outputs()["reports/data.html"].decode()
