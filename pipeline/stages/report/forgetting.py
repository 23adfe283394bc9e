"""General ability before and after fine-tuning: every tuned model against the untuned base (at 16 bit, or the
file that was trained on) on the same questions, and by subject.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.gate.recommend import is_base, untuned_name
from pipeline.pages.formats import signed
from pipeline.stages.report.comparisons import Comparison, compare, general_scores

Evaluations = Mapping[str, Mapping[str, Any]]


def forgetting_values(evaluations: Evaluations, seed: int) -> dict[str, Any] | None:
    """What the section's template needs; None where no model was asked."""
    asked = {model: found["general"] for model, found in evaluations.items() if found.get("general")}
    if not asked:
        return None
    scores, base = general_scores(evaluations), untuned_name(evaluations)
    against = {model: compare(base, model, scores, seed) for model in asked if not is_base(model)}
    subjects = list(
        dict.fromkeys(subject for found in asked.values() for subject in found.get("subjects") or {})
    )
    return {
        "asked": asked,
        "base": base,
        "against": against,
        "measured": base in asked,
        "subjects": [
            (subject, {model: (found.get("subjects") or {}).get(subject) for model, found in asked.items()})
            for subject in subjects
        ],
        "warnings": [warning(one) for one in against.values() if one and one.verdict == "worse"],
        "file": next(iter(asked.values())).get("file"),
        "rows": max(found["rows"] for found in asked.values()),
    }


def forgotten(evaluations: Evaluations, seed: int) -> dict[str, str]:
    """A warning for each tuned model that lost more than noise."""
    values = forgetting_values(evaluations, seed)
    return (
        {one.second: warning(one) for one in values["against"].values() if one and one.verdict == "worse"}
        if values
        else {}
    )


def warning(one: Comparison) -> str:
    """A loss that is more than noise, in a sentence."""
    lost = f"{signed(one.difference.points)} points of general ability against {one.first}"
    return f"{one.second} forgot: {lost} (95 % interval {one.interval}, {one.rows} questions)."
