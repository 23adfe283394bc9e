"""scorers: tool calls are compared as JSON values in their order, and what is wrong with them is counted."""

import json
from pathlib import Path
from typing import Any

import pytest
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.sections.training import Grpo
from pipeline.metrics.asking import score_answers
from pipeline.metrics.scorers import check_references, parse
from pipeline.metrics.tool_calls import (
    FINDINGS,
    call_figures,
    equal_calls,
    expected_calls,
    findings,
    made_calls,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from("fg"), "arguments": st.dictionaries(st.text(max_size=2), VALUES, max_size=2)}
    ),
    min_size=1,
    max_size=4,
)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def message(*texts: tuple[str, str]) -> dict[str, Any]:
    """A message as llama-server sends it."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "id": "x", "function": {"name": name, "arguments": text}}
            for name, text in texts
        ],
    }


def answer(
    expected: list[dict[str, Any]], made: list[dict[str, Any]], number: int = 0, **more: Any
) -> dict[str, Any]:
    row = {"id": str(number), "domain": "a", "prompt": "?", "reference": "", "answer": "", "stopped": True}
    calls = {"expected_calls": expected, "calls": made}
    return (
        row
        | {key: value for key, value in calls.items() if value}
        | {"stopped": True, "refused": False}
        | more
    )


def points(expected: list[dict[str, Any]], made: list[dict[str, Any]]) -> float | None:
    return parse("tool_calls").measure("", "", answer(expected, made)).points


A, B, C = call("f", x=1), call("g", x=[1, {"y": None}]), call("h")
BROKEN = {"name": "f", "arguments": '{"x": 1'}


@pytest.mark.parametrize(
    ("expected", "made", "score", "found"),
    [
        ([A], [A], 1, {"equal"}),
        ([A, B], [A, B], 1, {"equal"}),
        ([A, A], [A, A], 1, {"equal"}),
        ([A], [call("f", x=1.0)], 1, {"equal"}),
        ([call("f", a=1, b=2)], [call("f", b=2, a=1)], 1, {"equal"}),
        ([A], [call("f", x=True)], 0, {"arguments"}),
        ([A], [call("f", x="1")], 0, {"arguments"}),
        ([call("f", x=[1, 2])], [call("f", x=[2, 1])], 0, {"arguments"}),
        ([call("f", x=None)], [call("f")], 0, {"arguments"}),
        ([A], [call("F", x=1)], 0, {"missing", "extra"}),
        ([A, B], [B, A], 0.5, {"order"}),
        ([A, B], [A], 2 / 3, {"missing"}),
        ([A], [A, C], 2 / 3, {"extra"}),
        ([A], [A, A], 2 / 3, {"extra"}),
        ([A, B, C], [A, call("g", x=[2]), C], 2 / 3, {"arguments"}),
        ([A, A], [A, call("f", x=2)], 0.5, {"arguments"}),
        ([A], [], 0, {"text"}),
        ([A], [BROKEN], 0, {"invalid_json"}),
        ([A, B], [BROKEN, B], 0.5, {"invalid_json"}),
        ([A, B], [call("f", x=2), BROKEN, B], 0.4, {"arguments", "extra", "invalid_json"}),
    ],
)
def test_points_are_the_f1_of_equal_calls_in_order(
    expected: list[dict[str, Any]], made: list[dict[str, Any]], score: float, found: set[str]
) -> None:
    assert points(expected, made) == pytest.approx(score)
    assert findings(answer(expected, made)) == found
    assert equal_calls(expected, made) == (score == 1)


@given(CALLS, CALLS)
@settings(max_examples=draws(200))
def test_all_points_are_for_equal_calls_only(expected: Any, made: Any) -> None:
    score = points(expected, made)
    assert score is not None and 0 <= score <= 1
    assert (score == 1) == equal_calls(expected, made) == (findings(answer(expected, made)) == {"equal"})
    assert score == points(made, expected)
    # what a writer of JSON does to a value leaves it the same
    again = json.loads(json.dumps(made, indent=3, sort_keys=True))
    assert points(again, made) == 1


def test_a_row_without_calls_is_not_measured_whatever_the_model_does() -> None:
    assert points([], []) is points([], [A]) is None


def test_arguments_that_are_no_object_stay_text() -> None:
    texts = ['{"x": 1}', "", "[1]", '{"x": 1', '{"x": 1, "x": 2}', '{"x": NaN}', '{"x": "\\ud800"}', "null"]
    texts += ['{"x":' * 2000 + "1" + "}" * 2000]
    made = made_calls(message(*(("f", text) for text in texts)))
    assert [one["arguments"] for one in made] == [{"x": 1}, *texts[1:]]
    assert made_calls({"role": "assistant", "content": "no calls"}) == []
    assert json.dumps(made)


def test_only_calls_are_scored_by_tool_calls_and_only_words_by_others() -> None:
    rows = [
        answer([A], [A], 0),
        answer([A], [B], 1),
        answer([A], [], 2, unparsed=True),
        answer([], [], 3, reference="42", answer="42"),
        answer([], [C], 4, reference="42", answer=""),
    ]
    task = score_answers(rows, ["tool_calls", "exact_match"])
    assert [row["scores"] for row in rows] == [
        {"tool_calls": 1.0, "exact_match": None},
        {"tool_calls": 0.0, "exact_match": None},
        {"tool_calls": 0.0, "exact_match": None},
        {"tool_calls": None, "exact_match": 1.0},
        {"tool_calls": None, "exact_match": 0.0},
    ]
    assert [task["scores"][name]["measured"] for name in ("tool_calls", "exact_match")] == [3, 2]
    assert (task["scorer"], task["score"], task["valid"], task["unscored"]) == (
        "tool_calls",
        0.3333,
        0.6667,
        {},
    )
    counted = {"rows": 3, "equal": 1, "missing": 1, "extra": 1, "unparsed": 1, "others": 2, "unexpected": 1}
    assert task["calls"] == dict.fromkeys(("rows", *FINDINGS, "others", "unexpected"), 0) | counted
    assert call_figures(rows) == task["calls"]


def test_where_no_row_calls_the_next_scorer_decides_and_it_is_said() -> None:
    rows = [answer([], [], 0, reference="42", answer="42")]
    task = score_answers(rows, ["tool_calls", "exact_match"])
    assert (task["scorer"], task["score"]) == ("exact_match", 1.0)
    assert "none of them calls" in task["unscored"]["tool_calls"]


def test_references_that_call_are_not_tried_by_scorers_of_words() -> None:
    turn = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
    }
    assert expected_calls(turn) == [A]
    check_references([{"id": "r1", "messages": [turn]}], ["tool_calls", "json_fields"], Path())


def test_rewards_refuse_it_by_name() -> None:
    with pytest.raises(ValueError, match=r"grpo\.rewards names tool_calls"):
        Grpo(rewards={"tool_calls": 1.0})
    assert Grpo(rewards={"exact_match": 1.0}).rewards == {"exact_match": 1.0}
