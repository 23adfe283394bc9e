"""pipeline.metrics.commonest: the commonest expected answer, scored as if a model had given it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.sections import Evaluate, Judge
from pipeline.metrics import judging
from pipeline.metrics.commonest import commonest_points
from pipeline.metrics.score import Score
from pipeline.stages.evaluate.kept import Measured


def rows(*references: str, **more: Any) -> list[dict[str, Any]]:
    """Answers, all wrong, to rows that expect these."""
    return [
        {"id": f"r{number}", "reference": text, "answer": "?", "stopped": True, "refused": False} | more
        for number, text in enumerate(references)
    ]


def test_few_repeated_answers_have_their_commonest_one_scored_row_by_row() -> None:
    found = commonest_points(rows("a", "b ", "a", " a", "b", "a"), ["exact_match"], Path())
    right = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    assert found == {"answer": "a", "rows": 4, "distinct": 2, "points": {"exact_match": right}}


@pytest.mark.parametrize(
    "answers",
    [
        rows("a", "b", "c", "a", "d"),  # hardly repeated
        rows("", "", expected_calls=[{"name": "find", "arguments": {}}]),
        [],
    ],
)
def test_answers_that_are_not_repeated_have_no_commonest_one(answers: list[dict[str, Any]]) -> None:
    assert commonest_points(answers, ["exact_match"], Path()) is None


def test_the_stage_records_it_and_leaves_the_answers_alone(tmp_path: Path) -> None:
    measured = Measured({}, rows("a", "a", "b", "a"))
    measured.score(Evaluate(models=["F16"], scorers=["exact_match"]), tmp_path)
    assert measured.figures["task"]["commonest"]["points"] == {"exact_match": [1.0, 1.0, 0.0, 1.0]}
    assert [(answer["answer"], answer["score"]) for answer in measured.answers] == [("?", 0.0)] * 4


def test_a_judge_marks_the_answers_and_is_not_asked_of_the_commonest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked: list[str] = []

    def mark(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
        marked.append(answer)
        return Score(0.5, True)

    monkeypatch.setattr(judging, "judged_by", lambda *_: mark)
    judge = Judge(url="http://127.0.0.1:1/v1", model="m")
    measured = Measured({}, rows("a", "a", "b", "a"))
    settings = Evaluate(models=["F16"], scorers=["exact_match", "judge"], judge=judge)
    measured.score(settings, tmp_path)
    assert marked == ["?"] * 4
    assert measured.figures["task"]["scores"]["judge"]["score"] == 0.5
    assert set(measured.figures["task"]["commonest"]["points"]) == {"exact_match"}
