"""Values of the page's section on tool calls: how many rows each model calls right, what was wrong with the
others, and rows next to each other. Rows on which models differ come first.
"""

from collections.abc import Sequence
from typing import Any

from pipeline.gate.evaluations import Answer, Answers, Evaluations
from pipeline.metrics.tool_calls import FINDINGS, answer_text, call_text, findings
from pipeline.pages.differences import clipped

EXAMPLES = 4
LONGEST = 1000  # characters of a turn or of its calls


def calls_values(evaluations: Evaluations, answers: Answers) -> dict[str, Any] | None:
    """Return the values of the section's template; None unless a held-out row expects calls.

    {"findings": their words by name, "models": figures by model, "examples": rows with each model's calls}
    """
    figures = {
        model: evaluation.task.calls
        for model, evaluation in evaluations.items()
        if evaluation.task and evaluation.task.calls and evaluation.task.calls["rows"]
    }
    if not figures:
        return None
    expecting = [
        row for row in zip(*answers.values(), strict=True) if all(answer.expected_calls for answer in row)
    ]
    expecting.sort(key=_interest)
    return {
        "findings": FINDINGS,
        "models": figures,
        "examples": [_example(list(answers), row) for row in expecting[:EXAMPLES]],
    }


def answer_with_calls(answer: Answer) -> str:
    """Return a model's answer: the text, and its calls below it."""
    return answer_text(answer.answer, answer.calls)


def _findings(answer: Answer) -> set[str]:
    return findings(answer.model_dump())


def _words(answer: Answer) -> list[str]:
    """Return the findings of an answer in words, in the order of the columns."""
    names = _findings(answer)
    return [words for name, words in FINDINGS.items() if name in names]


def _interest(row: Sequence[Answer]) -> int:
    """Return 0 for a row that models differ on, 1 for one that all have wrong, 2 if all have it right."""
    different = {frozenset(_findings(answer)) for answer in row}
    if len(different) > 1:
        return 0
    return 2 if different == {frozenset({"equal"})} else 1


def _example(models: Sequence[str], row: Sequence[Answer]) -> dict[str, Any]:
    """Return a row for the page, each model's answer with its findings in words."""
    first = row[0]
    return {
        "id": first.id,
        "prompt": clipped(str(first.prompt or ""), LONGEST),
        "expected": clipped(call_text(first.expected_calls or ()), LONGEST),
        "answers": [
            (model, clipped(answer_with_calls(answer), LONGEST), _words(answer))
            for model, answer in zip(models, row, strict=True)
        ],
    }
