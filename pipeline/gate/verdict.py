"""Judge whether a model may be shipped: `report.gate`'s limits against the measurements of `evaluate` and
`parity`. Values in, checks out.

A rule whose limit is null is off and leaves no check. A missing measurement never passes. If it should have
been made, it fails: divergence always should; task, stops and general ability if the model's reference has
them. If the settings leave it out (`scorers: []`, `general: none`), the check is "not measured" and refuses
nothing, because divergence was measured then. The same rules apply to all graphs
(`pipeline.gate.comparison`).

A drop of the task score or of general ability refuses if its entire 95 % interval is above the limit and is
unlikely by chance (p below 0.05). A drop above the limit that chance may have made is "not decided", and so
is a speed whose runs lie on both sides of its limit, or that other load disturbed. That refuses nothing
either, and no text counts it as passed.

    quench ship Q4_K_M
"""

from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config.sections import Gate
from pipeline.core.checks import Check, overall
from pipeline.gate import rules
from pipeline.gate.comparison import comparison
from pipeline.gate.records import Parity, Train
from pipeline.gate.scores import Evidence

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
    """The gate's judgment of one model: a check for each rule that is on, named after the rule (`key`)."""

    model: str
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Literal["pass", "not decided", "fail"]:
        """Verdict: one check that fails refuses the model; one that is not decided leaves it open."""
        verdict = overall(self.checks)
        return "not decided" if verdict == "pass" and self.undecided else verdict

    @property
    def refusing(self) -> tuple[str, ...]:
        """Keys of the checks that refuse."""
        return tuple(check.key for check in self.checks if check.verdict == "fail")

    @property
    def undecided(self) -> tuple[str, ...]:
        """Sentences of the checks that what was measured can't decide."""
        return tuple(check.sentence for check in self.checks if check.verdict == "not decided")

    @property
    def only_speed_is_undecided(self) -> bool:
        """True if every check that is not decided is on speed, so that more held-out rows decide nothing."""
        return all(check.key in rules.SPEEDS for check in self.checks if check.verdict == "not decided")

    @property
    def is_above_commonest(self) -> bool:
        """False if the model was not found better than always giving the commonest expected answer."""
        return all(check.verdict == "pass" for check in self.checks if check.key == "commonest")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Sentences of the checks that refuse."""
        return tuple(check.sentence for check in self.checks if check.verdict == "fail")

    def record(self) -> dict[str, Any]:
        """Return the judgment as JSON: a bundle's evidence/gate.json."""
        return {
            "model": self.model,
            "verdict": self.verdict,
            "findings": [check.record(RECORD) for check in self.checks],
        }


def judge(
    model: str,
    evidence: Evidence,
    parity: Parity,
    limits: Gate,
    train: Train | None = None,
) -> Judgment:
    """Judge a model of the evidence by its evaluation and answers, parity's report and training's."""
    compared = comparison(model, evidence.evaluations, parity)
    checks = (
        rules.parity(parity, compared.needed),
        rules.Rule("reference").check("fail", compared.fault) if compared.fault else None,
        rules.divergence("kld", compared.kld, limits.max_kld),
        rules.divergence("same_top", compared.same_top, limits.min_same_top),
        rules.divergence("trained", compared.trained, limits.max_kld_trained),
        rules.task_drop(model, compared.against, evidence, limits.max_task_drop),
        rules.above_commonest(model, evidence),
        rules.stopped(model, compared, evidence.evaluations, limits.min_stopped),
        rules.forgetting(model, compared.untuned, evidence, limits.max_forgetting),
        rules.preferences(train, limits.min_preference_accuracy),
        rules.generation(model, evidence.evaluations, limits.min_generation_tok_s),
        rules.first_token(model, evidence.evaluations, limits.max_first_token_seconds),
    )
    return Judgment(model, tuple(check for check in checks if check))
