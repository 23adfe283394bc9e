"""Values of the page's tables by expected answer, where these are few, as labels are: each one's points by
model, and which answer was given in place of which.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pipeline.config.products import is_base
from pipeline.core.text import common_start, one_line
from pipeline.gate.evaluations import Answer, Answers, Evaluations, commonest_line

MOST = 20  # expected answers with a row and a column of their own, the commonest first
LONGEST = 40  # characters of an answer
BEFORE = 8  # characters before the place at which answers part


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
    # Beside a call the reference's words are not what is expected.
    asked = {model: [row for row in rows if not row.expected_calls] for model, rows in answers.items()}
    expected = Counter(_text(row.reference) for row in next(iter(asked.values())))
    shown = [text for text, _ in expected.most_common(MOST)]
    names = _names(shown)
    labels = [
        Label(names[text], expected[text], {model: _mean(rows, text) for model, rows in asked.items()})
        for text in shown
    ]
    confusions = [_confusion(model, rows, names) for model, rows in asked.items() if not is_base(model)]
    return Labels(labels, confusions, len(expected) - len(shown))


def _mean(rows: Sequence[Answer], expected: str) -> float | None:
    """Return the mean points, from 0 to 1, of the rows that expect this answer; None if none has a score."""
    points = [row.score for row in rows if row.score is not None and _text(row.reference) == expected]
    return fmean(points) if points else None


def _confusion(model: str, rows: Sequence[Answer], names: Mapping[str, str]) -> Confusion:
    """Return the counts of the answers that have `names`."""
    lines = []
    for expected, name in names.items():
        given = Counter(_text(row.answer) for row in rows if _text(row.reference) == expected)
        columns = [given[text] for text in names]
        lines.append((name, [*columns, given.total() - sum(columns)]))
    return Confusion(model, lines)


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _names(texts: Sequence[str]) -> dict[str, str]:
    """Return a short name for each of these texts, which no other one has: its beginning, and where others
    begin alike, the place at which they part. A number tells apart what differs further on, or only in white
    space.
    """
    alike: dict[str, list[str]] = {}
    for text in texts:
        alike.setdefault(_short(text), []).append(text)
    names = {}
    for begin, group in alike.items():
        parting = min([common_start(group[0], other) for other in group[1:]], default=0)
        for text in group:
            names[text] = begin
            if parting > LONGEST // 2:
                rest = one_line(text[parting - BEFORE :], LONGEST // 2)
                names[text] = f"{one_line(text, LONGEST // 2)} {rest}"
    seen: Counter[str] = Counter()
    for text, name in names.items():
        seen[name] += 1
        if seen[name] > 1:
            names[text] = f"{name} ({seen[name]})"
    return {text: names[text] for text in texts}


def _short(text: str) -> str:
    return one_line(text, LONGEST) or "(empty)"
