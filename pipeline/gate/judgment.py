"""What the gate says of a model: a check for each rule, and what refuses."""

from dataclasses import dataclass
from typing import Any, Literal

from pipeline.core.checks import Check, overall

TITLES = {
    "parity": "Parity checks",
    "reference": "Reference",
    "kld": "Divergence",
    "same_top": "Same first choice",
    "trained": "From the trained model",
    "task_drop": "Task",
    "stopped": "Ends its answers",
    "forgetting": "General ability",
    "preferences": "Preferences",
}
RECORD = {
    "rule": "key",
    "title": "name",
    "figure": "figure",
    "limit": "limit",
    "verdict": "verdict",
    "sentence": "sentence",
}


@dataclass(frozen=True)
class Judgment:
    """What the gate says of one model: a check for each rule that is on, called by the rule (`key`)."""

    model: str
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Literal["pass", "fail"]:
        """One check that fails refuses the model."""
        return overall(self.checks)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences of what refuses."""
        return tuple(check.sentence for check in self.checks if check.verdict == "fail")

    def record(self) -> dict[str, Any]:
        """As JSON: a bundle's evidence/gate.json."""
        return {
            "model": self.model,
            "verdict": self.verdict,
            "findings": [check.record(RECORD) for check in self.checks],
        }


def check(
    rule: str,
    verdict: bool | Literal["pass", "fail", "not measured"],
    sentence: str,
    figure: float | None = None,
    limit: float | None = None,
) -> Check:
    """A rule's check; a `verdict` of True passes."""
    verdict = ("pass" if verdict else "fail") if isinstance(verdict, bool) else verdict
    return Check(TITLES[rule], verdict, sentence, figure=figure, limit=limit, key=rule)


def missing(rule: str, limit: float, what: str, stage: str) -> Check:
    """What should have been measured and was not refuses."""
    return check(
        rule,
        "fail",
        f"{what[0].upper()}{what[1:]}, which refuses: run `python -m pipeline {stage}` again.",
        None,
        limit,
    )
