"""Values of the page's tables by expected answer, where these are few, as labels are: each one's points by
model, and which answer was given in place of which.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pipeline.config.products import is_base
from pipeline.core.text import one_line
from pipeline.gate.evaluations import Answer, Answers, Evaluations, commonest_line

MOST = 20  # expected answers with a row and a column of their own, the commonest first
LONGEST = 40  # characters of an answer


@dataclass(frozen=True)
class Label:
    """An expected answer, how many held-out rows expect it, and each model's mean points there."""

    text: str
    rows: int
    points: Mapping[str, float | None]


@dataclass(frozen=True)
class Confusion:
    """Counts of a model's answers: a line for each expected one, a column for each label, then one for any
    other text.
    """

    model: str
    lines: Sequence[tuple[str, Sequence[int]]]


@dataclass(frozen=True)
class Labels:
    """The tables; `left_out` is the number of expected answers that are too rare to be shown."""

    labels: Sequence[Label]
    confusions: Sequence[Confusion]
    left_out: int


def labels_values(evaluations: Evaluations, answers: Answers) -> Labels | None:
    """Return the values of the tables; None where expected answers are hardly repeated."""
    if commonest_line(evaluations) is None or not answers:
        return None
    first = next(iter(answers.values()))
    expected = Counter(_text(row.reference) for row in first if not row.expected_calls)
    shown = [text for text, _ in expected.most_common(MOST)]
    labels = [
        Label(_short(text), expected[text], {model: _mean(rows, text) for model, rows in answers.items()})
        for text in shown
    ]
    confusions = [_confusion(model, rows, shown) for model, rows in answers.items() if not is_base(model)]
    return Labels(labels, confusions, len(expected) - len(shown))


def _mean(rows: Sequence[Answer], expected: str) -> float | None:
    """Return the mean points, from 0 to 1, of the rows that expect this answer; None if none has a score."""
    points = [row.score for row in rows if row.score is not None and _text(row.reference) == expected]
    return fmean(points) if points else None


def _confusion(model: str, rows: Sequence[Answer], shown: Sequence[str]) -> Confusion:
    lines = []
    for expected in shown:
        given = Counter(_text(row.answer) for row in rows if _text(row.reference) == expected)
        columns = [given[text] for text in shown]
        lines.append((_short(expected), [*columns, given.total() - sum(columns)]))
    return Confusion(model, lines)


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _short(text: str) -> str:
    return one_line(text, LONGEST) or "(empty)"
