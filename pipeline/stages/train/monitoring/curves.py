"""The curves of a training run up to now, which the rules of monitoring look at."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from pipeline.config.methods import METHODS
from pipeline.config.sections import Train

WINDOW = 10  # steps in a running median: one odd batch does not move it


class Run:
    """A value per step, and (step, eval loss, training loss then) per evaluation."""

    def __init__(self, max_steps: int, settings: Train) -> None:
        self.max_steps, self.settings = max_steps, settings
        self.distillation = settings.method == "distill"
        self.preferences = METHODS[settings.method].preferences
        self.losses: list[float] = []
        self.gradients: list[float] = []
        self.speeds: list[float] = []
        self.evaluations: list[tuple[int, float, float]] = []
        self.measures: list[dict[str, float]] = []  # of each step, by name
        self.newest: dict[str, Any] = {}

    def measured(self, name: str) -> list[float]:
        """What a method measures beside its loss under this name, by step; without steps that had none."""
        return [one[name] for one in self.measures if name in one]

    def add(self, row: dict[str, Any]) -> None:
        """Take in a row of the metrics log."""
        self.newest = row
        if row["kind"] == "step":
            self.losses.append(row["loss"])
            self.gradients.append(row["grad_norm"])
            self.speeds.append(row["tokens_per_second"])
            self.measures.append(row.get("measures", {}))
        else:
            self.evaluations.append((row["step"], row["eval_loss"], median(self.losses[-WINDOW:])))


def median(values: Sequence[float]) -> float:
    """The median of those that are finite, NaN if none is: among NaN, sorting gives any order."""
    known = [value for value in values if math.isfinite(value)]
    return statistics.median(known) if known else math.nan
