"""Cost of quantization: each level of the untuned base next to the tuned model's, and whether fine-tuning, an
importance matrix or distillation recovers it.

A level's divergence is measured from its own 16-bit model (base-LEVEL from base-F16, LEVEL from F16), so the
two columns show the same rounding applied to two models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config.levels import IMPROVED_BY, UNTUNED, ModelName
from pipeline.config.products import REFERENCES
from pipeline.gate.evaluations import Evaluations
from pipeline.pages.formats import signed
from pipeline.stages.report.comparisons import Comparison, Scores, compare

# ratios of the divergence after to that before
RECOVERED = 0.5  # Most of the damage is recovered below it.
PARTLY = 0.8  # Part of the damage is recovered below it.
WORSE = 1.25  # The damage is worse above it.


@dataclass(frozen=True)
class Side:
    """One model's divergence from its own 16-bit model.

    A divergence from another model counts as not measured.
    """

    model: str
    measured: bool
    kld_mean: float | None = None
    same_top: float | None = None
    all_kld: float | None = None
    task: Comparison | None = None


@dataclass(frozen=True)
class Level:
    """A fixed level of both models."""

    level: str
    fallback: int
    tensors: int
    base: Side
    tuned: Side

    @property
    def ratio(self) -> float | None:
        """The tuned model's KLD over the base's; None if one is missing."""
        before, after = self.base.kld_mean, self.tuned.kld_mean
        return after / before if before and after is not None else None

    @property
    def words(self) -> str:
        """Effect of the same rounding on the tuned model compared with the base, in a few words."""
        return "" if self.ratio is None else change(self.ratio)


def quantizing_values(evaluations: Evaluations, scores: Scores, reference: str) -> dict[str, Any]:
    """Return the values of the section's template: a row per level, a sentence for each improved level."""

    def side(model: str, sixteen: str) -> Side:
        evaluation = evaluations.get(model)
        task = compare(sixteen, model, scores)
        if evaluation is None or evaluation.reference != sixteen:
            return Side(model, evaluation is not None, task=task)
        return Side(
            model, True, evaluation.kld_mean, evaluation.same_top, evaluation.all_tokens.kld_mean, task
        )

    rows = []
    for level in _levels(evaluations):
        file = evaluations.get(level) or evaluations[UNTUNED + level]
        base, tuned = side(UNTUNED + level, UNTUNED + reference), side(level, reference)
        rows.append(Level(level, file.fallback_tensors, file.tensors, base, tuned))
    return {
        "rows": rows,
        "improved": _improved(evaluations, scores),
        "missing": _missing(rows, reference),
    }


def _levels(evaluations: Evaluations) -> list[str]:
    """Return the fixed levels, tuned or not, as llama-quantize makes them by itself."""
    spelled = dict.fromkeys(ModelName(model).bare for model in evaluations)
    return [
        str(level) for level in map(ModelName, spelled) if level not in REFERENCES and level == level.plain
    ]


def change(ratio: float) -> str:
    """Describe the change of a damage, by the divergence after over that before."""
    if ratio < PARTLY:
        return "recovers most of it" if ratio < RECOVERED else "recovers part of it"
    return "changes little" if ratio <= WORSE else "makes it worse"


def _improved(evaluations: Evaluations, scores: Scores) -> list[str]:
    """Return sentences on the effect of an importance matrix or distillation on each level that was made with
    and without it, and on which of the two is better.
    """
    sentences = []
    for model, evaluation in evaluations.items():
        name = ModelName(model)
        level = name.plain
        plain = evaluations.get(name.plain) if name.ending else None
        if not plain or evaluation.kld_mean is None or not plain.kld_mean:
            continue
        before, after = plain.kld_mean, evaluation.kld_mean
        sentences.append(
            f"{IMPROVED_BY[name.ending]} {change(after / before)}: {level} has a mean KLD of "
            f"{before:.3g} without and {after:.3g} with it."
            f"{_better(level, model, after < before, scores)}"
        )
    return sentences


def _better(plain: str, improved: str, nearer: bool, scores: Scores) -> str:
    """Return a sentence on which of the two is better on the held-out rows; "" if they were not scored.

    If the scores can't tell, divergence decides: `nearer` is True if that of `improved` is the lower one.
    """
    comparison = compare(plain, improved, scores)
    if comparison is None:
        return ""
    if comparison.verdict == "noise":
        by = "divergence"
        is_improved = nearer
    else:
        by = "the scores"
        is_improved = comparison.verdict == "better"
    best = improved if is_improved else plain
    return (
        f" On the same {comparison.rows} held-out rows {improved} scores "
        f"{signed(comparison.difference.points)} points ({comparison.interval}) against {plain}, "
        f"{comparison.words}: by {by} {best} is the better of the two."
    )


def _missing(rows: Sequence[Level], reference: str) -> str:
    """Return a sentence on levels that can't be compared and what would measure them; "" without any."""
    lacking = [side.model for row in rows for side in (row.base, row.tuned) if side.kld_mean is None]
    if not lacking:
        return ""
    return (
        f"Not measured against their own 16-bit model ({reference}, {UNTUNED}{reference}): "
        f"{', '.join(lacking)}; name them in quantize.levels and evaluate.models."
    )
