"""The page's verdict: a headline, the recommendation's sentence and what to beware of, the gravest first."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.config.sections import BASE_WITH_ADAPTER, TUNED
from pipeline.gate.recommend import Recommendation
from pipeline.pages.parity_summary import counts

if TYPE_CHECKING:
    from pipeline.gate.judgment import Judgment


def headline(parity: Mapping[str, Any], advice: Recommendation, verdicts: Mapping[str, "Judgment"]) -> str:
    """The verdict in a few words; what stands against shipping comes before the level's name."""
    if parity["verdict"] != "pass":
        return "Ship nothing: parity failed"
    if advice.model is None:
        refused = verdicts and all(verdict.verdict == "fail" for verdict in verdicts.values())
        what = ("every level", "No level fits")
        for model, name in ((BASE_WITH_ADAPTER, "the adapter"), (TUNED, "the tuned file")):
            what = (name, "The model does not fit") if model in verdicts else what
        return f"Ship nothing: the gate refuses {what[0]}" if refused else what[1]
    if any(gain.model == advice.model and gain.beats is False for gain in advice.gains):
        return f"{advice.model}, but no better than the base"
    return f"{advice.model}, below the standard" if advice.below_standard else f"Ship {advice.model}"


def with_warnings(
    advice: Recommendation, parity: Mapping[str, Any], forgotten: Mapping[str, str]
) -> Recommendation:
    """The advice, headed by a warning where a parity check failed, and with what the recommended level forgot
    (`forgotten` by model).
    """
    failed = counts(parity["checks"])["fail"]
    warnings = list(advice.warnings)
    if failed or parity["verdict"] != "pass":
        checks = {0: "Parity did not pass", 1: "1 parity check failed"}.get(
            failed, f"{failed} parity checks failed"
        )
        warnings.insert(
            0, f"{checks}: do not serve these files before the cause is found (section Parity checks)."
        )
    if advice.model is not None and advice.model in forgotten:
        warnings.append(forgotten[advice.model])
    return replace(advice, warnings=tuple(warnings))
