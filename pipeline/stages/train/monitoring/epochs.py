"""Proof from the metrics log that every packed row was trained once per epoch, through all resumes."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

NAMED = 5  # numbers named in one sentence
ROUNDING = 1e-6  # an epoch's last step has the epoch's number up to a float's rounding


def epochs_complete(rows: Sequence[dict[str, Any]], packed_rows: int) -> list[str]:
    """What is wrong with the order of training, as sentences; none where all is right.

    `rows` is the metrics log, `packed_rows` the number n of rows in data/tokens/train.parquet. Every finished
    epoch must hold each of 0 … n - 1 exactly once, an unfinished one none of them twice, and the steps must
    be 1, 2, 3 ….
    """
    steps = [row for row in rows if row["kind"] == "step"]
    numbers = [row["step"] for row in steps]
    faults = _uneven("the metrics log, step", numbers, range(1, max(numbers, default=0) + 1))
    if not faults and numbers != sorted(numbers):
        faults.append("the metrics log: its steps are out of order")
    trained: dict[int, list[int]] = {}
    for row in steps:
        trained.setdefault(_epoch(row), []).extend(row["rows"])
    done = max((row["epoch"] for row in steps), default=0.0)
    for epoch in range(1, max(trained, default=0) + 1):
        finished = epoch <= done + ROUNDING
        faults += _uneven(
            f"epoch {epoch}, packed row", trained.get(epoch, []), range(packed_rows), skips=finished
        )
    return faults


def _epoch(row: dict[str, Any]) -> int:
    """1 for the first: a step's `epoch` counts the passes done after it, so the first ends at 1.0."""
    return max(1, math.ceil(float(row["epoch"]) - ROUNDING))


def _uneven(what: str, found: Iterable[int], wanted: range, *, skips: bool = True) -> list[str]:
    """A sentence on numbers that are there twice, that don't exist, and (with `skips`) that lack."""
    counted = Counter(found)
    kinds = {
        "repeated": [number for number, times in counted.items() if times > 1],
        "unknown": [number for number in counted if number not in wanted],
        "skipped": [number for number in wanted if number not in counted] if skips else [],
    }
    return [f"{what} {_listed(sorted(numbers))}: {kind}" for kind, numbers in kinds.items() if numbers]


def _listed(numbers: list[int]) -> str:
    more = len(numbers) - NAMED
    return ", ".join(map(str, numbers[:NAMED])) + (f" and {more} more" if more > 0 else "")
