"""A scorer that gives all answers of all models the same points decides nothing."""

from typing import Any

import pytest
from gate_inputs import evaluations_of

from pipeline.gate.deciding_scorer import passed_over_sentence, with_deciding_scorer
from pipeline.gate.evaluations import ANSWERS, Answers, Evaluations

MODELS = {"F16": 0.33, "Q4_K_M": 0.3, "base-F16": 0.12}


def measured(exact: float, rouge: dict[str, float] = MODELS) -> tuple[Evaluations, Answers]:
    """Return evaluations of models whose answers all have `exact` points by exact_match."""
    reports: dict[str, Any] = {}
    answers = {}
    for model, score in rouge.items():
        figures = {
            "exact_match": {
                "score": exact,
                "score_low": exact,
                "score_high": exact,
                "measured": 4,
                "valid": 1.0,
            },
            "rouge_l": {
                "score": score,
                "score_low": score - 0.1,
                "score_high": score + 0.1,
                "measured": 4,
                "valid": 0.9,
            },
        }
        reports[model] = {
            "task": {"rows": 4, "scorer": "exact_match", "score": exact, "scores": figures, "stopped": 1.0}
        }
        rows = [
            {
                "id": f"r{row}",
                "domain": "a",
                "score": exact,
                "scores": {"exact_match": exact, "rouge_l": score + row / 100},
            }
            for row in range(4)
        ]
        answers[model] = ANSWERS.validate_python(rows)
    return evaluations_of(reports), answers


@pytest.mark.parametrize("points", [0.0, 1.0])
def test_a_scorer_at_the_floor_or_ceiling_of_all_models_is_passed_over(points: float) -> None:
    evaluations, answers = with_deciding_scorer(*measured(points))
    for model, score in MODELS.items():
        task = evaluations[model].task
        assert task is not None
        assert (task.scorer, task.score, task.passed_over) == ("rouge_l", score, ["exact_match"])
        assert [row.score for row in answers[model]] == [score + row / 100 for row in range(4)]
        assert task.domains is not None and task.domains["a"]["rows"] == 4
    sentence = passed_over_sentence(evaluations)
    assert sentence is not None and "exact_match" in sentence and "rouge_l" in sentence


def test_one_answer_with_points_lets_the_first_scorer_decide() -> None:
    evaluations, answers = measured(0.0)
    answers["F16"][0].scores["exact_match"] = 1.0
    assert with_deciding_scorer(evaluations, answers) == (evaluations, answers)
    assert passed_over_sentence(evaluations) is None


def test_where_no_scorer_tells_more_the_first_stays() -> None:
    evaluations, answers = measured(0.0)
    for rows in answers.values():
        for row in rows:
            row.scores["rouge_l"] = 0.0
    decided, _ = with_deciding_scorer(evaluations, answers)
    assert {evaluation.score for evaluation in decided.values()} == {0.0}
    assert passed_over_sentence(decided) is None


def test_the_next_scorer_is_the_next_of_the_settings_not_of_the_alphabet() -> None:
    evaluations, answers = measured(0.0)
    asked = ("rouge_l", "judge", "exact_match")  # only the last tells anything apart
    for model, rows in answers.items():
        task = evaluations[model].task
        assert task is not None and task.scores is not None
        old = task.scores
        figures = {
            "exact_match": old["rouge_l"],
            "judge": old["exact_match"],
            "rouge_l": old["exact_match"],
        }
        task.__dict__.update(scorer="rouge_l", scores=figures)
        for row in rows:
            points = {"rouge_l": 0.0, "judge": 0.0, "exact_match": row.scores["rouge_l"]}
            row.__dict__.update(scores={name: points[name] for name in asked})
    decided, _ = with_deciding_scorer(evaluations, answers)
    task = decided["F16"].task
    assert task is not None
    assert (task.scorer, task.passed_over) == ("exact_match", ["rouge_l", "judge"])
