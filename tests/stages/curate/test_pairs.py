"""Pairs of chats that were scored: the better answer to the same request is chosen, every scored row is
accounted for, and no pair is on another side of the split than its chats.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from curating import Project, Row, chat, lines, of_rows


def scored(question: str, answer: str, reward: float | None = None, **more: Any) -> Row:
    return chat(question, answer) | ({} if reward is None else {"reward": reward}) | more


def pairs_of(rows: list[Row]) -> list[tuple[str, str]]:
    """(chosen, rejected) of the preference rows."""
    found = [row for row in rows if row["kind"] == "preference"]
    return [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in found]


def run(tmp_path: Path, *rows: Row, **changes: Any) -> tuple[Project, Row]:
    project = Project(tmp_path, {"chats.jsonl": lines(*rows)})
    return project, project.run(**{"pairs": "rewards"} | changes)


def test_the_better_answer_is_chosen_and_both_chats_stay(tmp_path: Path) -> None:
    project, counts = run(tmp_path, scored("2 + 2?", "five", 0.0), scored("2 + 2?", "four", 1.0))
    *chats, pair = project.rows()
    assert [chat["kind"] for chat in chats] == ["chat", "chat"]
    assert pair["source"] == "chats.jsonl:2 > chats.jsonl:1"
    assert pair["messages"] == [{"role": "user", "content": "2 + 2?"}]
    assert pairs_of([pair]) == [("four", "five")]
    splits = {"train": 1, "val": 0, "test": 0}
    figures = {"made": 1, "mean_gap": 1.0, "rows": {"paired": 2}, "scored_rows": 2}
    assert counts["pairs"] == figures | {"splits": splits}
    assert counts["untrained"] == {"preference": 1}
    assert "chats.jsonl:2 over chats.jsonl:1" in (tmp_path / "reports/data.html").read_text()


def test_nothing_changes_unless_it_is_asked_for(tmp_path: Path) -> None:
    project, counts = run(tmp_path, scored("q?", "five", 0.0), scored("q?", "four", 1.0), pairs="none")
    assert pairs_of(project.rows()) == []
    assert "pairs" not in counts


def test_the_best_goes_with_the_worst_and_no_chat_is_in_two_pairs(tmp_path: Path) -> None:
    answers = {"apple": 0.5, "brick": 0.1, "cloud": 0.9, "drum": 0.4, "eagle": 0.7}
    project, counts = run(tmp_path, *(scored("Say a word.", *answer) for answer in answers.items()))
    assert sorted(pairs_of(project.rows())) == [("cloud", "brick"), ("eagle", "drum")]
    assert counts["pairs"]["rows"] == {"left_over": 1, "paired": 4}
    assert counts["pairs"]["mean_gap"] == pytest.approx((0.8 + 0.3) / 2)


def test_every_scored_row_is_accounted_for(tmp_path: Path) -> None:
    untrained = scored("e?", "never", 1.0)
    untrained["messages"][1]["train"] = False
    untrained["messages"] = [*scored("e?", "first")["messages"], *untrained["messages"]]
    rows = [
        scored("a?", "alone", 1.0),
        scored("b?", "one", 0.5),
        scored("b?", "another", 0.5),  # equal rewards
        scored("d?", "same", 0.1),
        scored("d?", "Same", 0.9),  # a duplicate: the first stays
        untrained,
        scored("f?", "no reward"),
    ]
    _, counts = run(tmp_path, *rows)
    assert counts["pairs"]["made"] == 0
    assert counts["pairs"]["rows"] == {"alone": 2, "equal_rewards": 2, "left_out": 1, "not_trained": 1}
    assert "0 pairs made of 6 rows" in (tmp_path / "reports/data.html").read_text()


def test_identical_answers_are_no_pair_where_duplicates_stay(tmp_path: Path) -> None:
    rows = [scored("d?", "same", 0.1), scored("d?", "same", 0.9)]
    _, counts = run(tmp_path, *rows, drop_duplicates="none")
    assert counts["pairs"]["rows"] == {"alone": 1, "identical_answers": 1}


@pytest.mark.parametrize(
    "other",
    [
        {"system": "Be brief."},
        {"tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}]},
        {"history": True},
    ],
)
def test_another_request_is_no_pair(tmp_path: Path, other: Row) -> None:
    second = scored("2 + 2?", "four", 1.0, **other)
    if second.pop("history", False):
        second["messages"] = [*scored("1 + 1?", "two")["messages"], *second["messages"]]
    _, counts = run(tmp_path, scored("2 + 2?", "five", 0.0), second)
    assert counts["pairs"]["rows"] == {"alone": 2}


def test_earlier_turns_tools_and_calls_go_into_the_pair(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    good, bad = scored("2 + 2?", "", 1.0, tools=tools), scored("2 + 2?", "five", 0.0, tools=tools)
    good["messages"][1]["tool_calls"] = [call]
    for row in (good, bad):
        row["messages"] = [*scored("Hello", "Hi")["messages"], *row["messages"]]
    good["messages"][1]["train"] = False  # how an earlier turn was trained is no part of the request
    project, counts = run(tmp_path, good, bad)
    assert counts["pairs"]["made"] == 1
    pair = project.rows()[-1]
    assert (len(pair["messages"]), pair["tools"][0]["function"]["name"]) == (3, "add")
    assert pair["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"a": 2}
    assert all("train" not in turn for turn in pair["messages"])


LONG = "The quick brown fox jumps over the lazy dog while seven wizards vex a jumbo gnome. " * 3


def test_near_duplicates_are_a_pair_though_one_is_no_chat_any_more(tmp_path: Path) -> None:
    project, counts = run(tmp_path, scored(LONG, "It ends in yes.", 0.2), scored(LONG, "It ends in no.", 0.8))
    assert counts["duplicates"]["near_rows"] == 1
    assert [row["kind"] for row in project.rows()] == ["chat", "preference"]
    assert pairs_of(project.rows()) == [("It ends in no.", "It ends in yes.")]


def test_a_near_duplicate_that_overlaps_what_is_guarded_is_in_no_pair(tmp_path: Path) -> None:
    guarded = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    long = " ".join(str(n * 7919) for n in range(400))
    longer = "Nothing of it stands in there, as far as I can see, nor will it ever do so, I am afraid."
    rows = [scored(long, longer, 0.8), scored(long, guarded, 0.2)]
    project = of_rows(tmp_path, rows, guard={"exam.txt": guarded})
    counts = project.run(pairs="rewards", decontaminate=["exam.txt"])
    assert counts["duplicates"]["near_rows"] == 1
    assert [row["messages"][1]["content"] for row in project.rows()] == [longer]
    assert counts["contamination"]["rows"] == 1
    assert counts["pairs"]["made"] == 0


def many(requests: int) -> list[Row]:
    words = ["red", "green", "blue", "gray"]
    return [
        scored(f"What about number {n} of the {n * 7919 % 1000} things?", f"{word} {n * 31}", place / 4)
        for n in range(requests)
        for place, word in enumerate(words)
    ]


def test_a_pair_is_on_the_side_of_its_chats(tmp_path: Path) -> None:
    shares = {"val_fraction": 0.2, "test_fraction": 0.2}
    project, counts = run(tmp_path, *many(60), drop_duplicates="exact", **shares)
    assert all(counts["pairs"]["splits"].values())
    assert sum(counts["splits"].values()) == counts["rows_kept"] == 240 + 120
    side = {split: project.rows(split) for split in ("train", "val", "test")}
    for rows in side.values():
        sources = {row["source"] for row in rows if row["kind"] == "chat"}
        requests = {json.dumps(row["messages"][:1]) for row in rows}
        for row in rows:
            if row["kind"] == "preference":
                assert set(row["source"].split(" > ")) <= sources
        others = [row for other in side.values() if other is not rows for row in other]
        assert not requests & {json.dumps(row["messages"][:1]) for row in others}


def test_a_request_of_many_rows_makes_pairs_on_each_side_alone(tmp_path: Path) -> None:
    """Its rows are no group: boilerplate is divided. So a pair could have a chat of training in the test."""
    words = [re.findall("....", hashlib.sha256(str(n).encode()).hexdigest()) for n in range(60)]
    rows = [scored("Write me some words.", " ".join(some), n / 60) for n, some in enumerate(words)]
    project, counts = run(tmp_path, *rows, val_fraction=0.0, test_fraction=0.3)
    assert counts["pairs"]["splits"]["test"]
    for split in ("train", "test"):
        rows = project.rows(split)
        sources = {row["source"] for row in rows if row["kind"] == "chat"}
        pairs = [row["source"].split(" > ") for row in rows if row["kind"] == "preference"]
        assert {one for pair in pairs for one in pair} <= sources


def test_a_source_that_is_not_trained_gives_no_pairs(tmp_path: Path) -> None:
    project = Project(tmp_path, {"a.jsonl": lines(scored("a?", "x"), *many(2)), "b.jsonl": lines(*many(9))})
    counts = project.run(pairs="rewards", source_weights={"b.jsonl": 0.0})
    made = [row["source"] for row in project.rows() if row["kind"] == "preference"]
    assert counts["pairs"]["made"] == len(made) > 0
    assert not [source for source in made if "b.jsonl" in source]
