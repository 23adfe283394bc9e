"""Score the commonest expected answer as if a model had given it to every question.

Where the answers are few, as labels are, always saying the commonest scores well. A model that is not above
that line has learned nothing of the task.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.config.sections import External
from pipeline.metrics.scorers import parse, scored
from pipeline.metrics.tool_calls import CALLS, EXPECTED, UNPARSED

REPEATS = 2  # rows an expected answer has on average, at least; otherwise no answer is common
ASKS_A_MODEL = "judge"  # scorer that costs a request for each row


def commonest_answer(answers: Sequence[dict[str, Any]]) -> tuple[str, int, int] | None:
    """Return the commonest expected answer, how many rows expect it, and how many different ones there are.

    None if they are hardly repeated. Rows that expect calls of tools have no such answer.
    """
    counts = Counter(row["reference"].strip() for row in answers if not row.get(EXPECTED))
    if not counts or counts.total() < REPEATS * len(counts):
        return None
    [(commonest, rows)] = counts.most_common(1)
    return commonest, rows, len(counts)


def commonest_points(
    answers: Sequence[dict[str, Any]],
    scorers: Sequence[str],
    root: Path,
    external: External | None = None,
) -> dict[str, Any] | None:
    """Return what `Commonest` of `pipeline.gate.evaluations` records; None if no answer is common.

    The points of each scorer are row by row, in the order of `answers`. A judge is not asked. Raises what
    `score_answers` does.
    """
    common = commonest_answer(answers)
    if common is None:
        return None
    text, rows, distinct = common
    said = [
        {key: value for key, value in row.items() if key not in (CALLS, UNPARSED)} | {"answer": text}
        for row in answers
    ]
    points = {}
    for spelled in scorers:
        if spelled == ASKS_A_MODEL:
            continue
        scorer = parse(spelled, root=root, program=external)
        with scorer.running:
            row_scores, _ = scored(scorer, said)
        points[scorer.name] = [score.points for score in row_scores]
    return {"answer": text, "rows": rows, "distinct": distinct, "points": points}
