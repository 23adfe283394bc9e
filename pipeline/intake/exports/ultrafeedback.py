"""UltraFeedback as its authors publish it: an instruction, and completions of several models with scores.

After github.com/OpenBMB/UltraFeedback and huggingface.co/datasets/openbmb/UltraFeedback (2023-09 to 2024):
`instruction`, `completions` with `response`, `overall_score` and `fine-grained_score`. Each record gives a
pair of the best and the worst completion.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import Export, Notes, any_record, each_record
from pipeline.intake.exports.view import View

OVERALL = "overall_score"
FINE = "fine-grained_score"


class Scored(NamedTuple):
    """A completion and its scores; NaN if it has none."""

    words: str
    overall: float
    fine: float

    @property
    def score(self) -> float:
        """Return the score by which completions are sorted."""
        return self.fine if math.isnan(self.overall) else self.overall


def _completions(value: View) -> list[View]:
    """Return the completions of a record; none for any other record."""
    completions = value.elements("completions")
    are_scored = any(
        "response" in completion and (OVERALL in completion or FINE in completion)
        for completion in completions
    )
    return completions if are_scored and value.has("instruction", str) else []


def rows_of(value: View, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the pair of a record.

    Raises `BadLine` if the scores determine no best and no worst completion.
    """
    listed = _completions(value)
    if not listed:
        raise BadLine("bad_shape", "a record of UltraFeedback has an instruction and completions with scores")
    scored = [
        _scored(completion, f"completions {number}") for number, completion in enumerate(listed, start=1)
    ]
    rated = [completion for completion in scored if not math.isnan(completion.score)]
    notes["completions_without_score"] += len(scored) - len(rated)
    if len(rated) < 2:
        raise BadLine("no_preference", "fewer than two completions have a score")
    best = max(rated, key=lambda completion: (completion.score, completion.fine))
    worst = min(rated, key=lambda completion: (completion.score, completion.fine))
    if best.score == worst.score:
        raise BadLine("no_preference", "all completions have the same score")
    if best.fine < worst.fine:
        raise BadLine("no_preference", f"{OVERALL} and {FINE} contradict each other")
    notes["completions_not_paired"] += len(rated) - 2
    yield {"prompt": value["instruction"], "chosen": best.words, "rejected": worst.words}


def _scored(completion: View, where: str) -> Scored:
    if not completion.has("response", str):
        raise BadLine("bad_shape", f"{where} has no response")
    return Scored(completion["response"], _number(completion.get(OVERALL)), _number(completion.get(FINE)))


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


EXPORT = Export("ultrafeedback", any_record(_completions), each_record(rows_of))
