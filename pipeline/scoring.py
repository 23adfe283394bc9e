"""How an answer is scored against its reference, and how sure a mean score is."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True)
class Score:
    """Points of one answer, 0 to 1, and whether it could be read at all."""

    points: float
    valid: bool


def json_fields(reference: str, answer: str) -> Score:
    """Share of the reference object's fields that the answer's object has with an equal value."""
    wanted = _object(reference)
    if wanted is None:
        raise ValueError("the reference is no JSON object")
    given = _object(answer)
    if given is None:
        return Score(0.0, False)
    right = sum(key in given and given[key] == value and type(given[key]) is type(value) for key, value in wanted.items())
    return Score(right / len(wanted) if wanted else float(given == wanted), True)


def exact_match(reference: str, answer: str) -> Score:
    """1 where the answer is the reference, white space around both aside."""
    return Score(float(answer.strip() == reference.strip()), bool(answer.strip()))


SCORERS: dict[str, Callable[[str, str], Score]] = {"json_fields": json_fields, "exact_match": exact_match}


def interval(points: list[float], seed: int) -> tuple[float, float]:
    """95 % interval of the mean by percentile bootstrap over rows (Efron 1979), with a fixed seed."""
    values = np.array(points)
    picks = np.random.default_rng(seed).integers(0, len(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(values[picks].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
