"""Monitor of a run: the rules of a method, applied to each row of the metrics log as it is written.

It has no side effects: rows in, checks out. The trainer prints a warning and stops on a failure.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from pipeline.config.sections import Train
from pipeline.core.checks import Check

USUAL_LOSS = (0.5, 2.0)  # nats, for chats
WINDOW = 10  # steps in a running median, so that one odd batch does not move it
# A rule's finding: sentence, then remedy and id. The monitor adds the name.
passed = partial(Check, "", "pass")
warning = partial(Check, "", "warn")  # A run can continue with it.
failure = partial(Check, "", "fail")  # It stops a run.
unknown = partial(Check, "", "not measured")
SEVERITY = {"not measured": 0, "pass": 1, "warn": 2, "fail": 3}
# key of an entry in reports/train.json: the field of `Check`
KEYS = {"level": "verdict", "rule": "name", "step": "step", "text": "sentence", "cause": "remedy"}


class History:
    """History of a run: a value per step, and (step, eval loss, training loss then) per evaluation."""

    def __init__(self, max_steps: int, settings: Train) -> None:
        self.max_steps = max_steps
        self.settings = settings
        self.losses: list[float] = []
        self.gradients: list[float] = []
        self.speeds: list[float] = []
        self.evaluations: list[tuple[int, float, float]] = []
        self.measures: list[dict[str, float]] = []  # measures of each step, by name
        self.newest: dict[str, Any] = {}

    def measured(self, name: str) -> list[float]:
        """Return the method's measures of this name besides its loss, by step, for steps that had some."""
        return [step[name] for step in self.measures if name in step]

    def add(self, row: dict[str, Any]) -> None:
        """Add a row of the metrics log."""
        self.newest = row
        if row["kind"] == "step":
            self.losses.append(row["loss"])
            self.gradients.append(row["grad_norm"])
            self.speeds.append(row["tokens_per_second"])
            self.measures.append(row.get("measures", {}))
        else:
            self.evaluations.append((row["step"], row["eval_loss"], median(self.losses[-WINDOW:])))


def median(values: Sequence[float]) -> float:
    """Return the median of the finite values, or NaN if there are none.

    NaN would make the sorted order arbitrary.
    """
    finite = [value for value in values if math.isfinite(value)]
    return statistics.median(finite) if finite else math.nan


Rule = Callable[[History], Check]
Rules = dict[str, Rule]


class RuleSets(NamedTuple):
    """Rules of a method: for every step, for every evaluation, and at the end."""

    step: Rules
    eval: Rules
    end: Rules


class Monitor:
    """Monitor of one run of `max_steps` optimizer steps by `rules`."""

    def __init__(self, max_steps: int, settings: Train, rules: RuleSets) -> None:
        self._run = History(max_steps, settings)
        self._step_rules, self._eval_rules, self._end_rules = rules
        self._found: dict[str, Check] = {}

    def see(self, row: dict[str, Any]) -> list[Check]:
        """Add a row of the metrics log.

        Return its new warnings and failures, repeated only if they got worse.
        """
        self._run.add(row)
        rules = self._step_rules if row["kind"] == "step" else self._eval_rules
        new = [check for check in self._judge(rules, row["step"]) if self._is_new(check)]
        # Judged at half time, which is early enough to save the other half.
        if row["kind"] == "step" and row["step"] == self._run.max_steps // 2:
            new += [check for check in self._judge(self._end_rules) if check.verdict in ("warn", "fail")]
        return new

    def findings(self) -> list[Check]:
        """Return each rule once with its worst finding, failures and warnings first."""
        names = self._step_rules | self._eval_rules
        unseen = {name: Check(name, "not measured", "no such row yet") for name in names}
        findings = unseen | self._found
        checks = [*findings.values(), *self._judge(self._end_rules)]
        return sorted(checks, key=lambda check: -max(SEVERITY[check.verdict], 1))

    def records(self) -> list[dict[str, Any]]:
        """Return the findings for reports/train.json, where a check that passed is "ok"."""
        records = [check.record(KEYS) for check in self.findings()]
        return [record | {"level": "ok"} if record["level"] == "pass" else record for record in records]

    def restore(self, rows: Iterable[dict[str, Any]]) -> None:
        """Add the metrics log of an interrupted run, which gives the same state as an uninterrupted one."""
        for row in rows:
            self.see(row)

    def _judge(self, rules: Rules, step: int | None = None) -> list[Check]:
        """Return the rules' findings on the run up to now, named. A warning or failure has its step."""
        checks = [replace(rule(self._run), name=name) for name, rule in rules.items()]
        return [replace(check, step=step) if check.verdict in ("warn", "fail") else check for check in checks]

    def _is_new(self, check: Check) -> bool:
        """Keep the check unless a worse one is known. Return True if it is a new warning or failure."""
        kept = self._found.get(check.name)
        now = SEVERITY[check.verdict]
        before = SEVERITY[kept.verdict] if kept else -1
        # The first of two warnings is kept, but the newest of two other findings.
        if now > before or now == before < SEVERITY["warn"]:
            self._found[check.name] = check
        return now >= SEVERITY["warn"] and now > before
