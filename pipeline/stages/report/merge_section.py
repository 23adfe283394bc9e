"""The report's sections on what was trained: how much the adapter changes each layer and module; which base
weights it was merged into and why, how far it moved them, and whether that outlives rounding.

Figures are those of the adapter, of `reports/merge.json`, of the levels' weights in `reports/parity.json` and
of the evaluations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from statistics import fmean, median
from typing import Any

from pipeline.config.levels import UNTUNED
from pipeline.gate.evaluations import Evaluations
from pipeline.gate.records import Merge, MergedTensor, Parity
from pipeline.metrics.adapter_norms import Norms
from pipeline.pages.heat_map import Figures, by_cell, heat_map, modules_of

MERGE_BASES = {"16-bit": "16-bit base", "nf4": "NF4 base"}
LOST = 0.25  # of what the fine-tune changed: from here on a level is said to lose it


def merge_values(merge: Merge, parity: Parity, evaluations: Evaluations, reference: str) -> dict[str, Any]:
    """What the section's template needs; `reference` is the 16-bit model, "base-" before it the untuned."""
    changes = by_place(merge.adapters, "relative_change")
    levels = survival(merge.adapters, noise(parity), evaluations, reference)
    return {
        "merge_base": MERGE_BASES[merge.merge_base],
        "candidates": candidates(merge),
        "levels": levels,
        "maps": {
            "change": heat_map(changes, share),
            "nf4": heat_map(by_place(merge.adapters, "nf4_error_to_update"), "{:.3g} ×".format),
        },
        "changes": table(changes),
        "outside": [
            (tensor.tensor, share(tensor.relative_change))
            for tensor in merge.adapters
            if tensor.layer is None and tensor.relative_change
        ],
        "warnings": [*merge.warnings, *(row.warning for row in levels if row.warning)],
    }


def adapter_values(norms: Sequence[Norms]) -> dict[str, Any] | None:
    """What the template of the adapter's section needs; None where no adapter was trained."""
    if not norms:
        return None
    largest = sorted(norms, key=lambda norm: -norm.norm_update)[:3]
    return {
        "map": heat_map(by_place(norms, "norm_update"), "{:.3g}".format),
        "tensors": len(norms),
        "total": f"{hypot(*(norm.norm_update for norm in norms)):.4g}",
        "a": f"{hypot(*(norm.norm_a for norm in norms)):.4g}",
        "b": f"{hypot(*(norm.norm_b for norm in norms)):.4g}",
        "largest": [(norm.tensor, f"{norm.norm_update:.3g}") for norm in largest],
        "idle": [norm.tensor for norm in norms if not norm.norm_update],
    }


def by_place(tensors: Sequence[MergedTensor | Norms], key: str) -> dict[tuple[int, str], list[float | None]]:
    """One figure of every adapted tensor by (layer, module)."""
    places: dict[tuple[int, str], list[float | None]] = {}
    for tensor in tensors:
        if tensor.layer is not None:
            places.setdefault((tensor.layer, tensor.module), []).append(getattr(tensor, key))
    return {} if all(value is None for values in places.values() for value in values) else places


def table(figures: Figures) -> dict[str, Any]:
    """The map's figures to be read as numbers: {"modules", "rows": [(layer, a text per module)]}."""
    cells = by_cell(figures)
    modules = modules_of(cells)
    return {
        "modules": modules,
        "rows": [
            (
                layer,
                [
                    share(fmean(shares)) if (shares := cells.get((layer, module))) else "–"
                    for module in modules
                ],
            )
            for layer in sorted({layer for layer, _ in cells})
        ],
    }


def candidates(merge: Merge) -> list[dict[str, Any]]:
    """A row for each merge at each level that was measured, the levels together; those at the deciding level
    of the chosen merge are marked.
    """
    measured = merge.candidates
    return [
        {
            "merge_base": MERGE_BASES[merge_base],
            "model": model,
            "chosen": merge_base == merge.merge_base and model == merge.deciding_level,
            **measured[merge_base][model],
        }
        for model in list(dict.fromkeys(model for levels in measured.values() for model in levels))
        for merge_base in measured
        if model in measured[merge_base]
    ]


def noise(parity: Parity) -> dict[str, float]:
    """Mean relative rounding error (RMSE) of each level's tensors, as the parity checks measured it."""
    return {
        check.place or "": value
        for key, check in parity.checks.items()
        if key.startswith("weights_") and (value := check.figures.get("rmse_mean"))
    }


@dataclass(frozen=True)
class Survival:
    """Whether the fine-tune outlives a level, which rounds a weight by `noise`.

    `change` is the median over tensors of mean |Δ| / mean |W|, `visible` counts those of `tensors` whose
    change stands out of the level's rounding (`stands_out`); tensors without a spectral norm, DoRA's, are in
    neither. What decides is `lost`, what both do to the outputs: the level's divergence from the 16-bit model
    over the untuned base's, None where one of them was not measured.
    """

    level: str
    noise: float
    change: float
    visible: int
    tensors: int
    lost: float | None

    @property
    def warning(self) -> str:
        """Nothing where the fine-tune is seen to survive, or stands out of the rounding in most tensors."""
        if self.lost is not None and self.lost >= LOST:
            return (
                f"The fine-tune will not survive {self.level}: it loses {self.lost:.0%} of what the "
                "fine-tune changed in the outputs."
            )
        if self.lost is None and self.visible * 2 < self.tensors:
            seen = f"in {self.visible} of {self.tensors} tensors"
            return (
                f"The fine-tune may not survive {self.level}: its change stands out of the level's rounding "
                f"{seen}, and what that does to the outputs was not measured."
            )
        return ""


def survival(
    adapters: Sequence[MergedTensor], noises: Mapping[str, float], evaluations: Evaluations, reference: str
) -> list[Survival]:
    """Whether the fine-tune outlives each level."""
    ratios = [tensor.relative_change for tensor in adapters if tensor.relative_change is not None]
    if not ratios:
        return []
    drifts = {model: evaluation.kld_mean for model, evaluation in evaluations.items()}
    effect = drifts.get(UNTUNED + reference)
    spectral = [tensor for tensor in adapters if tensor.spectral_update is not None]
    return [
        Survival(
            level,
            rounding,
            median(ratios),
            sum(stands_out(tensor, rounding) for tensor in spectral),
            len(spectral),
            drift / effect if (drift := drifts.get(level)) is not None and effect else None,
        )
        for level, rounding in noises.items()
    ]


def stands_out(tensor: MergedTensor, noise: float) -> bool:
    """Whether the change stands out of the tensor's rounding noise.

    Rounding errors are independent, the change is not: it stands out of an m × n weight as soon as its
    largest singular value exceeds s · (mn)^¼, s being the noise of one weight (Benaych-Georges and
    Nadakuditi, "The singular values and vectors of low rank perturbations of large rectangular random
    matrices", 2012). So a change far below the rounding of each weight can be plain to see.
    """
    largest = tensor.spectral_update or 0.0
    return bool(largest > noise * tensor.rms_weight * (tensor.rows * tensor.columns) ** 0.25)


def share(value: float) -> str:
    """A share of 1 with three significant digits: 0.784 %."""
    return f"{value * 100:.3g} %"
