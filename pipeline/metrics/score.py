"""The score of one answer by a scorer, and the scorer."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pipeline.chat.rows import OTHERS


@dataclass(frozen=True)
class Score:
    """Points of one answer, 0 to 1 (None: not measured), and whether it could be read at all."""

    points: float | None
    valid: bool


UNREADABLE = Score(0.0, False)
# Arguments: reference, answer, the answer's row as in reports/eval/MODEL.answers.jsonl. Raises ValueError if
# the *reference* can't be scored by.
Measure = Callable[[str, str, Mapping[str, Any]], Score]


def best_score(measure: Measure, answer: Mapping[str, Any]) -> Score:
    """Return the score of an answer's row by the reference that it meets best.

    Raises `ValueError` if none of the references can be scored by.
    """
    scores = []
    for reference in references(answer):
        try:
            scores.append(measure(reference, answer["answer"], answer))
        except ValueError as error:
            problem = error
    if not scores:
        raise problem
    return max(scores, key=lambda score: (-1.0 if score.points is None else score.points, score.valid))


def references(answer: Mapping[str, Any]) -> list[str]:
    """Return every reference of an answer's row or of a question, first the one that is trained."""
    return [answer["reference"], *answer.get(OTHERS, ())]


@dataclass(frozen=True)
class Scorer:
    """Scorer as spelled in `evaluate.scorers`.

    `slots` answers are scored at once, inside the context `running`.
    """

    name: str
    measure: Measure
    slots: int = 1
    running: AbstractContextManager[object] = field(default_factory=nullcontext)
