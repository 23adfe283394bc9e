"""pipeline.stages.report.front: which three rows are shown before and after training."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.gate.evaluations import Answer
from pipeline.gate.inputs import Inputs
from pipeline.stages.report.front import examples


def rows(scores: list[float | None], words: str) -> list[Answer]:
    return [
        Answer.model_validate(
            {"id": f"r{number}", "prompt": "a?\n\n \nb?", "reference": "c", "answer": words, "score": score}
        )
        for number, score in enumerate(scores)
    ]


def shown(level: str, **answers: list[float | None]) -> list[tuple[str, str]]:
    given = {name.replace("base_", "base-"): rows(scores, name) for name, scores in answers.items()}
    inputs = cast(Inputs, SimpleNamespace(answers=cast(Any, given)))
    return [(one.title, one.id) for one in examples(inputs, level)]


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        (
            {"base_Q4": [0.5, 0.0, 0.0, 0.9], "Q4": [0.6, 1.0, 0.5, 0.2], "F16": [1.0] * 4},
            [("Gained most", "r1"), ("In the middle", "r0"), ("Gained least", "r3")],
        ),
        # the base at the level was not asked, the one at 16 bit was
        (
            {"base_F16": [0.0, 0.5], "F16": [1.0] * 2, "Q4": [0.0, 1.0]},
            [("Gained most", "r1"), ("Gained least", "r0")],
        ),
        (
            {"Q4": [0.6, 1.0, 0.5], "F16": [1.0] * 3},
            [("Best", "r1"), ("In the middle", "r0"), ("Worst", "r2")],
        ),
        ({"Q4": [None, None], "F16": [None, None]}, [("Row 1", "r0"), ("Row 2", "r1")]),
        ({"Q4": [1.0], "F16": [1.0]}, [("Best", "r0")]),
        (
            {"base_Q4": [0.0, 0.5], "Q4": [0.0, 0.0], "F16": [1.0] * 2},
            [("No row gained", "r0"), ("Gained least", "r1")],
        ),
        ({"F16": [1.0]}, []),
    ],
)
def test_rows_that_gained_most_middling_and_least_are_shown(
    answers: dict[str, list[float | None]], wanted: list[tuple[str, str]]
) -> None:
    assert shown("Q4", **answers) == wanted


def test_empty_lines_take_no_room() -> None:
    inputs = cast(Inputs, SimpleNamespace(answers={"F16": rows([1.0], "x"), "Q4": rows([1.0], "x")}))
    (one,) = examples(inputs, "Q4")
    assert one.prompt == "a?\nb?"
