"""Chats to measure and calibrate with: other rows stand in where there are none, or (calibrating) too few."""

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from pipeline.chat.rendering import Unrenderable
from pipeline.chat.selection import chats_in, learned_in
from pipeline.chat.sequences import encode_rows
from pipeline.core.jsonl import write_rows

ASK = [{"role": "user", "content": "Yes or no?"}]
YES, NO = ([{"role": "assistant", "content": said}] for said in ("yes", "no"))


def rows(**counts: int) -> list[dict[str, Any]]:
    made = {
        "chat": {"messages": ASK + NO},
        "text": {"messages": [], "segments": []},
        "preference": {"messages": ASK, "chosen": YES, "rejected": NO},
        "feedback": {"messages": ASK + YES, "label": True},
        "prompt": {"messages": ASK, "answer": "yes"},
        "disliked": {"messages": ASK + NO, "kind": "feedback", "label": False},
    }
    return [
        {"id": f"{kind}{number}", "kind": kind} | made[kind]
        for kind, count in counts.items()
        for number in range(count)
    ]


def ids(found: Any) -> list[str]:
    return [row["id"] for row in found]


def test_the_wanted_answers_stand_in_where_there_is_no_chat(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    write_rows(file, rows(preference=1, feedback=1, prompt=1, disliked=1))
    for found in (list(chats_in(file)), list(learned_in(file))):
        assert ids(found) == ["preference0", "feedback0", "prompt0"]
        assert all(row["kind"] == "chat" and row["messages"][-1]["content"] == "yes" for row in found)


def test_chats_alone_are_measured_and_what_there_is_most_of_calibrates(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    write_rows(file, rows(chat=1, text=1, preference=3, disliked=5))
    assert ids(chats_in(file)) == ["chat0"]
    assert ids(learned_in(file)) == ["chat0", "text0", "preference0", "preference1", "preference2"]
    write_rows(file, rows(chat=2, preference=2))
    assert ids(learned_in(file)) == ["chat0", "chat1"]


def test_a_row_that_is_not_learned_names_the_method_that_was_asked_for() -> None:
    ((_, why),) = encode_rows(MagicMock(), rows(preference=1), "distill")
    assert isinstance(why, Unrenderable) and "distill" in str(why)
