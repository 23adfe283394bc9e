"""Instructions for the model, reasons to drop a text, and texts that cross the split."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.chat.rows import row_id
from pipeline.config.params import Params
from pipeline.config.sections import Augment, AugmentKind, Evaluate
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.jsonl import write_rows
from pipeline.stages.augment.filters import REASONS, found_right, problem_of, same_words
from pipeline.stages.augment.instructions import FLAWS, TEXTS, Call, calls_of
from pipeline.stages.augment.journal import Journal
from pipeline.stages.augment.overlap import shared
from pipeline.stages.augment.rows import raw_row
from pipeline.stages.augment.stage import check_budget, repeated

Row = dict[str, Any]


def settings(**changed: Any) -> Augment:
    return Augment.model_validate({"kinds": ["questions"], "model": "m.gguf", **changed})


def row_of(kind: str, **content: Any) -> Row:
    row = {"source": "a.jsonl:1", "kind": kind, "domain": "a", **content}
    return {"id": row_id(row), **row}


def chat(question: str, answer: str, **more: Any) -> Row:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return row_of("chat", messages=turns, **more)


def said(text: str, **more: Any) -> dict[str, Any]:
    turn = {"role": "assistant", "content": text}
    return {"turn": turn, "stopped": True, "calls": False, "tokens": [1, 1], "time": "now"} | more


def final(root: Path, **rows: list[Row]) -> Path:
    for split in ("train", "val", "test"):
        write_rows(root / f"{split}.jsonl", rows.get(split, []))
    return root


def one_call(kind: AugmentKind, row: Row, split: str = "train", instruction: str = "") -> Call:
    return Call(row, split, 0, instruction or f"{kind}/1", 1, {})


FILES = chat("How do I list the 10 newest files?", "Run ls -t | head -n 10 in that folder.")
REASON_OF = {
    "cut_off": said("How can the 10 newest", stopped=False),
    "calls_a_tool": said("", calls=True),
    "empty": said(" \n"),
    "unreadable": said("How do I see the 10 most recent \x00files?"),
    "refusal": said("I'm sorry, but I can't assist with that."),
    "repeats_instruction": said("Keep its meaning, and every number, name, path."),
    "near_copy": said("how do I list the 10 newest files"),
    "numbers_changed": said("Which command shows the twenty most recent files?"),
    "gives_answer": said("Should I use Run ls -t | head -n 10 in that folder. for the 10 newest ones?"),
}


@pytest.mark.parametrize("reason", REASON_OF)
def test_a_question_in_other_words_is_dropped_for_its_reason(reason: str) -> None:
    assert problem_of("questions", one_call("questions", FILES), REASON_OF[reason]) == reason
    assert reason in REASONS


def test_a_question_in_other_words_is_kept() -> None:
    text = said("Which command shows me the 10 most recent files?")
    assert problem_of("questions", one_call("questions", FILES), text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("run LS -t | head -n 10, in that folder", "near_copy"),
        ("Run ls -t head -n 10 in that folder.", None),  # the sign is what is said
        ("Run ls -t | head -n 1 in that folder.", None),
        ("I'm sorry, but I can't assist with that.", None),  # as vague as an answer can be
        ("Another answer: run find.", "speaks_of_the_task"),
        ('"how do I list the 10 newest files"', "repeats_question"),
        ("which leaves out something that matters", "repeats_instruction"),
    ],
)
def test_a_flawed_answer_is_dropped_for_its_reason(text: str, reason: str | None) -> None:
    call = one_call("rejected", FILES, instruction="rejected.incomplete/1")
    assert problem_of("rejected", call, said(text)) == reason


def test_a_flawed_answer_that_the_scorer_finds_right_has_its_points(tmp_path: Path) -> None:
    calls = [one_call("rejected", chat("What is 2 + 2?", "4"))] * 2
    points = found_right(calls, ["4", "5"], Evaluate(scorers=["exact_match"]), tmp_path)
    assert points == [1.0, 0.0]
    assert found_right(calls, ["4", "5"], Evaluate(scorers=[]), tmp_path) == [None, None]


def test_case_and_the_end_of_a_sentence_make_no_other_words() -> None:
    assert same_words("Is it so?", "is it so")
    assert not same_words("chmod +x a", "chmod -x a")
    assert not same_words("***", "+++")


def test_the_same_text_to_the_same_row_counts_once() -> None:
    call = one_call("questions", FILES)
    other = one_call("questions", chat("Other?", "x"))
    pairs = [(call, said("One?")), (call, said("one")), (other, said("One?")), (call, said("Two?"))]
    assert repeated(pairs, {}) == {1: "same_as_another"}
    assert repeated(pairs, {0: "empty"}) == {}


LONG = " ".join(f"word{number}" for number in range(13))
HELD = "How do I restart the printer on the second floor?"


@pytest.mark.parametrize(
    ("kind", "written", "reason"),
    [
        ("answers", f"It is {LONG}, as always.", "shared_with_held_out"),
        ("answers", f"It is {LONG.replace('word6', 'other')}.", None),
        ("questions", "How do I restart the printer on the second floor now?", "near_held_out"),
        ("questions", "What makes the copier upstairs start again?", None),
    ],
)
def test_what_a_held_out_row_says_is_dropped(
    kind: AugmentKind, written: str, reason: str | None, tmp_path: Path
) -> None:
    held = final(tmp_path, test=[chat(HELD, LONG)], train=[FILES])
    assert shared(kind, [one_call(kind, FILES)], [written], held).get(0) == reason


def test_what_the_row_itself_shares_with_a_held_out_row_is_no_reason(tmp_path: Path) -> None:
    own = chat(HELD, LONG)
    held = final(tmp_path, val=[chat(f"{HELD} Please.", LONG)], train=[own])
    calls = [one_call("questions", own), one_call("answers", own)]
    assert shared("questions", calls[:1], ["How is the office printer restarted?"], held) == {}
    assert shared("answers", calls[1:], [LONG], held) == {}


def test_a_row_of_val_is_held_against_training(tmp_path: Path) -> None:
    watched = one_call("rejected", chat("Q?", "a"), split="val")
    held = final(tmp_path, train=[chat("Other?", LONG)], val=[watched.row])
    assert shared("rejected", [watched], [LONG], held) == {0: "shared_with_held_out"}


PROMPT = row_of("prompt", messages=[{"role": "user", "content": "And this?"}], answer="")
TEXT = row_of("text", messages=[], segments=[{"text": "words", "train": True}])
BAD = chat("Is it?", "no", reward=-1.0)
PAIR = row_of(
    "preference",
    messages=[{"role": "user", "content": "Which one?"}],
    chosen=[{"role": "assistant", "content": "This one."}],
    rejected=[{"role": "assistant", "content": "None."}],
)


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("questions", {FILES["id"], BAD["id"], PROMPT["id"], PAIR["id"]}),
        ("rejected", {FILES["id"]}),
        ("answers", {PROMPT["id"]}),
    ],
)
def test_rows_of_the_kind_are_asked_and_no_other(kind: AugmentKind, asked: set[str], tmp_path: Path) -> None:
    rows = final(tmp_path, train=[FILES, PROMPT, TEXT, BAD, PAIR], val=[chat("Val?", "yes")])
    calls = calls_of(kind, settings(kinds=[kind]), rows)
    assert {call.row["id"] for call in calls if call.split == "train"} == asked
    assert any(call.split == "val" for call in calls) == (kind == "rejected")


def test_a_row_that_curation_repeats_is_asked_once(tmp_path: Path) -> None:
    rows = final(tmp_path, train=[FILES, FILES | {"source": "a.jsonl:1*2"}])
    assert len(calls_of("questions", settings(), rows)) == 1


def test_no_row_of_the_test_split_is_asked(tmp_path: Path) -> None:
    rows = final(tmp_path, test=[FILES], train=[chat("Train?", "yes")])
    asked = json.dumps([call.request for call in calls_of("rejected", settings(kinds=["rejected"]), rows)])
    assert "Train?" in asked
    assert "newest" not in asked


def test_seeds_are_the_rows_own_and_every_flaw_is_asked_for(tmp_path: Path) -> None:
    rows = final(tmp_path, train=[chat(f"Question {number}?", "yes") for number in range(20)])
    given = settings(kinds=["rejected"], per_row=2)
    calls = calls_of("rejected", given, rows)
    assert calls == calls_of("rejected", given, rows)
    assert len({call.seed for call in calls}) == 40
    assert {call.instruction for call in calls} == {f"rejected.{flaw}/1" for flaw in FLAWS} <= TEXTS.keys()
    fewer = calls_of("rejected", settings(kinds=["rejected"], rows=5), rows)
    assert {call.seed for call in fewer} <= {call.seed for call in calls}  # what is kept of them serves on


def test_rows_keep_their_answer_and_a_pair_has_the_rows_own_as_chosen() -> None:
    asked = raw_row("questions", one_call("questions", FILES), said(" Which are the 10 newest files? "))
    assert asked["messages"][0]["content"] == "Which are the 10 newest files?"
    assert asked["messages"][1] == FILES["messages"][1]
    pair = raw_row("rejected", one_call("rejected", FILES), said("Run rm."))
    assert pair["chosen"] == [FILES["messages"][1]]
    assert pair["rejected"] == [{"role": "assistant", "content": "Run rm."}]
    answered = raw_row("answers", one_call("answers", PROMPT), said("This.", turn={"content": "This."}))
    assert answered["messages"][0] == PROMPT["messages"][0]
    assert answered["messages"][-1]["content"] == "This."


def test_the_budget_is_told_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = final(tmp_path, train=[chat(f"Question {number}?", "yes") for number in range(6)])
    given = settings(max_calls=5)
    calls = calls_of("questions", given, rows)
    journal = Journal(tmp_path / "journal.jsonl", {"model": "m"})
    with pytest.raises(ConfigError) as refused:
        check_budget(given, calls, journal, "questions")
    assert refused.value.id == "Q-AUGMENT-009"
    check_budget(given, calls[:5], journal, "questions")
    assert "5 calls" in capsys.readouterr().out
    with pytest.raises(ConfigError):
        check_budget(settings(max_tokens=100), calls, journal, "questions")


def test_a_torn_last_line_is_cut_off_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    line = json.dumps({"call": "a", **said("x")}) + "\n"
    file.write_text(line + '{"call": "b", "tu')
    assert Journal(file, {}).texts.keys() == {"a"}
    assert file.read_text() == line
    file.write_text("{}\n" + line)
    with pytest.raises(DataError) as refused:
        Journal(file, {})
    assert refused.value.id == "Q-AUGMENT-006"


@pytest.mark.parametrize(
    "given",
    [
        {"model": None},
        {"url": "http://example.org/v1"},  # rows and key would cross the network in the clear
        {"url": "https://key@example.org/v1"},
        {"url": "ftp://127.0.0.1/v1"},
        {"url": "https://example.org/v1", "key_env": "sk-abc"},
        {"key_env": "A_KEY"},
        {"kinds": ["paraphrases"]},
        {"kinds": ["questions", "questions"]},
    ],
)
def test_settings_that_cant_be_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        settings(**given)


def test_a_project_that_asks_for_nothing_has_no_such_job() -> None:
    from pipeline.workflow.stages import rules

    asked = Params.model_validate({"augment": {"kinds": ["answers"], "model": "m.gguf"}})
    assert "augment" not in {rule.name for rule in rules(Params(), 1)}
    found = {rule.name: rule for rule in rules(asked, 1)}
    assert found["augment"].items == {"item": "answers"}
    assert "data/augmented/answers-train.jsonl" in found["preprocess"].deps
