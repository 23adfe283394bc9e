"""What a scorer says of one answer."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Score:
    """Points of one answer, 0 to 1 (None: not measured), and whether it could be read at all."""

    points: float | None
    valid: bool


UNREADABLE = Score(0.0, False)
# (reference, answer, the answer's row as in reports/eval/MODEL.answers.jsonl); ValueError where the
# *reference* can't be scored by
Measure = Callable[[str, str, Mapping[str, Any]], Score]


@dataclass(frozen=True)
class Scorer:
    """A scorer as `evaluate.scorers` spells it; `slots` answers are scored at once, while `running` lasts."""

    name: str
    measure: Measure
    slots: int = 1
    running: AbstractContextManager[object] = field(default_factory=nullcontext)
