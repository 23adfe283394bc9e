"""pipeline.stages.report.answers_browser: which rows are embedded, and nothing in them leaves its place."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.gate.evaluations import Answer
from pipeline.stages.report.answers_browser import browser_values


def row(identity: str, score: float | None, answer: str = "a", **more: Any) -> Answer:
    usual = {"prompt": "p", "reference": "r", "stopped": True}
    return Answer(**usual | {"id": identity, "answer": answer, "score": score} | more)


def embedded(values: dict[str, Any] | None) -> list[dict[str, Any]]:
    assert values is not None
    rows: list[dict[str, Any]] = json.loads(values["json"])["rows"]
    return rows


def differing(answers: dict[str, list[Answer]]) -> list[int]:
    return [number for number, row in enumerate(embedded(browser_values(answers))) if row["apart"]]


def test_rows_differ_by_score_and_by_answer_where_there_is_none() -> None:
    same, other = [row("a", 1.0), row("b", 1.0)], [row("a", 1.0), row("b", 0.5)]
    assert differing({"F16": same, "Q4": other}) == [1]
    # the tuned ones agree
    assert differing({"base-F16": [row("a", 0.0), row("b", 1.0)], "F16": same, "Q4": same}) == [0]
    assert differing({"F16": same, "Q4": same}) == []
    assert differing({"F16": [row("a", None, "x")], "Q4": [row("a", None, "y")]}) == [0]
    assert differing({"F16": [row("a", 1.0, "x")], "Q4": [row("a", 1.0, "y")]}) == []


def test_rows_on_which_models_differ_have_the_room_first_and_the_rest_is_counted() -> None:
    first = [row(str(number), 1.0, "x" * 1000) for number in range(20)]
    second = [row(str(number), 0.0 if number in (5, 17) else 1.0, "x" * 1000) for number in range(20)]
    found = browser_values({"F16": first, "Q4": second}, room=10_000)
    assert found is not None
    kept = [one["id"] for one in embedded(found)]
    assert {"5", "17"} <= set(kept)
    assert kept == sorted(kept, key=int)
    assert (found["rows"], found["apart"]) == (20, 2)
    assert 2 < found["kept"] == len(kept) < 10
    assert [one["id"] for one in found["examples"]] == ["5", "17"]


def test_long_answers_are_cut_visibly_and_objects_are_text() -> None:
    long = row("a", 1.0, "x" * 10_000, reference={"k": [1]}, refused=True, domain=None)
    (one,) = embedded(browser_values({"F16": [long]}))
    assert one["answers"][0][0].endswith("(6,000 more characters)")
    assert json.loads(one["reference"]) == {"k": [1]}
    assert (one["domain"], one["answers"][0][1:]) == ("", [1.0, True, True])


def test_nothing_answered_is_nothing() -> None:
    assert browser_values({}) is None


@given(st.text())
def test_what_is_embedded_is_the_same_text_and_ends_no_element(text: str) -> None:
    found = browser_values({"F16": [row("a", 1.0, text)]})
    assert embedded(found)[0]["answers"][0][0] == text
    assert found and "<" not in found["json"]
