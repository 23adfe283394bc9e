"""pipeline.chat.selection: every file has its share of what is measured, and what can't be measured makes
room for what can.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.chat.selection import answerable_rows, drawn, encoded_rows, measured_in, why_unanswered
from pipeline.core.errors import DataError
from pipeline.core.jsonl import write_rows

ASK, ANSWER = {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}
CALL = ANSWER | {"tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {}}}]}


def rows(name: str, count: int, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": f"{name}:{number}", "domain": name, "messages": list(messages)} for number in range(count)]


def test_every_file_has_its_share() -> None:
    """Curation writes file after file: the first 64 rows of two files of 180 were all of the first."""
    both = [*rows("a_math", 180, ASK, ANSWER), *rows("b_code", 180, ASK, ANSWER)]
    shares = Counter(row["domain"] for row in drawn(both, 64, seed=42))
    assert shares.total() == 64
    assert min(shares.values()) > 16


@given(st.integers(0, 30), st.integers(0, 40), st.integers(0, 9), st.randoms())
def test_the_draw_is_the_seeds_alone(count: int, there: int, seed: int, order: Any) -> None:
    known = rows("a", there, ASK, ANSWER)
    found = drawn(known, count, seed)
    assert len(found) == min(count, there)
    assert len({row["id"] for row in found}) == len(found)
    assert drawn(known, count + 1, seed)[:count] == found  # more rows are these and others
    shuffled = order.sample(known, len(known))
    assert drawn(shuffled, count, seed) == found
    fewer = [row for row in known if row not in found[:1]]
    assert drawn(fewer, count, seed)[: max(0, count - 1)] == found[1:]  # a row that leaves moves no other


def test_calls_of_tools_make_room_for_answers_in_words(tmp_path: Path) -> None:
    file = tmp_path / "test.jsonl"
    write_rows(file, [*rows("calls", 64, ASK, CALL), *rows("cut", 10, ASK), *rows("words", 136, ASK, ANSWER)])
    assert Counter(row["domain"] for row in answerable_rows(file, 64, ["exact_match"])) == {"words": 64}
    write_rows(file, rows("calls", 5, ASK, CALL))
    with pytest.raises(DataError, match="Q-CHAT-004"):
        answerable_rows(file, 64, ["exact_match"])


def test_texts_are_measured_where_there_is_no_chat(tmp_path: Path) -> None:
    file, text = tmp_path / "test.jsonl", {"id": "t", "kind": "text", "messages": [], "segments": []}
    write_rows(file, [text, *rows("a", 1, ASK, ANSWER)])
    assert [row["id"] for row in measured_in(file)] == ["a:0"]
    assert why_unanswered(file) is None
    write_rows(file, [text])
    assert [row["id"] for row in measured_in(file)] == ["t"]
    assert "test.jsonl" in str(why_unanswered(file))
    write_rows(file, [])
    assert why_unanswered(file) is None


def test_rows_longer_than_the_context_make_room_for_others(finished: Path, tmp_path: Path) -> None:
    from pipeline.chat.tokens import load_tokenizer

    long = ASK | {"content": "again and again " * 400}
    write_rows(tmp_path / "test.jsonl", [*rows("long", 8, long, ANSWER), *rows("short", 8, ASK, ANSWER)])
    tokenizer = load_tokenizer(finished / "models/adapter")
    found = encoded_rows(tokenizer, tmp_path / "test.jsonl", 8, 256)
    assert len(found) == 8
    assert all(len(one.ids) < 256 for one in found)
    (tmp_path / "test.jsonl").write_text(json.dumps(rows("long", 1, long, ANSWER)[0]) + "\n")
    assert encoded_rows(tokenizer, tmp_path / "test.jsonl", 8, 256) == []


def test_of_a_row_that_curation_repeats_no_copy_is_drawn() -> None:
    rows = [
        {"id": f"{number:016x}", "source": f"a*b/c:{number}{copy}"}
        for number in range(6)
        for copy in ("", "*2", "*3")
    ]
    found = drawn(rows, 4)
    assert len({row["id"] for row in found}) == 4
    assert not any(row["source"].endswith(("*2", "*3")) for row in found)
    assert len(drawn(rows, 20)) == 6
