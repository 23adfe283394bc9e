"""Is this run healthy? The rules of `pipeline.stages.train.monitoring.rules` applied to each row of the journal as it is written.

Pure: rows in, findings out. What a finding leads to (a line, a stop) is the trainer's business: it stops on level "fail".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config.sections import Train
from pipeline.stages.train.monitoring.rules import AT_END, EVERY_EVAL, EVERY_STEP, Run, Verdict

SEVERITY = {"not measured": 0, "ok": 1, "warn": 2, "fail": 3}


@dataclass(frozen=True)
class Finding:
    """What a rule says: `step` where it first saw it (None: of the whole run), `text` with the figures, `cause` with what to do."""

    level: Literal["ok", "warn", "fail", "not measured"]
    rule: str
    step: int | None
    text: str
    cause: str = ""


class Monitor:
    """Watches one run of `max_steps` optimizer steps."""

    def __init__(self, max_steps: int, settings: Train) -> None:
        self._run = Run(max_steps, settings)
        self._found: dict[str, Finding] = {}

    def see(self, row: dict[str, Any]) -> list[Finding]:
        """Take in one row of the journal; the warnings and failures that are new with it. A rule speaks up again only when it gets worse."""
        self._run.add(row)
        rules = EVERY_STEP if row["kind"] == "step" else EVERY_EVAL
        new = [finding for name, rule in rules.items() if (finding := self._judge(name, row["step"], rule(self._run)))]
        if row["kind"] == "step" and row["step"] == self._run.max_steps // 2:  # in time to spare the second half of a lost night
            new += [finding for name, rule in AT_END.items() if (finding := _finding(name, None, rule(self._run))).level in ("warn", "fail")]
        return new

    def findings(self) -> list[Finding]:
        """The whole account, each rule once, with the worst that it said; the gravest first."""
        account = {name: self._found.get(name) or Finding("not measured", name, None, "no such row yet") for name in EVERY_STEP | EVERY_EVAL}
        account |= {name: _finding(name, None, rule(self._run)) for name, rule in AT_END.items()}
        return sorted(account.values(), key=lambda finding: -SEVERITY[finding.level] if SEVERITY[finding.level] > 1 else 0)

    def restore(self, rows: Iterable[dict[str, Any]]) -> None:
        """Take in the journal of an interrupted run: the same state as if it had not been interrupted."""
        for row in rows:
            self.see(row)

    def _judge(self, name: str, step: int, verdict: Verdict) -> Finding | None:
        """Keep the verdict unless a worse one is known; gives it where it is a new warning or failure."""
        now = _finding(name, step, verdict)
        grave, known = SEVERITY[now.level], SEVERITY[self._found[name].level] if name in self._found else -1
        if grave > known or grave == known < SEVERITY["warn"]:  # of two warnings the first is kept, of two good words the newest
            self._found[name] = now
        return now if grave >= SEVERITY["warn"] and grave > known else None


def _finding(name: str, step: int | None, verdict: Verdict) -> Finding:
    level, text, cause = verdict
    return Finding(level, name, step if level in ("warn", "fail") else None, text, cause)
