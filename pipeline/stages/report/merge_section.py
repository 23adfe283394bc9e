"""Sections of the report on what was trained: how much the adapter changes each layer and module; which base
weights it was merged into and why, how far it moved them, and whether that survives rounding.

Figures come from the adapter, `reports/merge.json`, the levels' weights in `reports/parity.json`, and the
evaluations.
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
LOST = 0.25  # Share of what the fine-tune changed. A level that loses at least this much gets a warning.


def merge_values(merge: Merge, parity: Parity, evaluations: Evaluations, reference: str) -> dict[str, Any]:
    """Return the values of the section's template.

    `reference` is the 16-bit model; "base-" before it is the untuned one.
    """
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
    """Return the values of the adapter section's template; None if no adapter was trained."""
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
    """Return one figure of every adapted tensor by (layer, module)."""
    places: dict[tuple[int, str], list[float | None]] = {}
    for tensor in tensors:
        if tensor.layer is not None:
            places.setdefault((tensor.layer, tensor.module), []).append(getattr(tensor, key))
    return {} if all(value is None for values in places.values() for value in values) else places


def table(figures: Figures) -> dict[str, Any]:
    """Return the map's figures as numbers: {"modules", "rows": [(layer, a text per module)]}."""
    cells = by_cell(figures)
    modules = modules_of(cells)

    def mean(layer: int, module: str) -> str:
        shares = cells.get((layer, module))
        return share(fmean(shares)) if shares else "–"

    return {
        "modules": modules,
        "rows": [
            (layer, [mean(layer, module) for module in modules])
            for layer in sorted({layer for layer, _ in cells})
        ],
    }


def candidates(merge: Merge) -> list[dict[str, Any]]:
    """Return a row for each merge at each level that was measured, grouped by level. The row of the chosen
    merge at the deciding level is marked.
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
    """Return the mean relative rounding error (RMSE) of each level's tensors, by the parity checks."""
    errors: dict[str, float] = {}
    for key, check in parity.checks.items():
        if not key.startswith("weights_"):
            continue
        error = check.figures.get("rmse_mean")
        if error:
            errors[check.place or ""] = error
    return errors


@dataclass(frozen=True)
class Survival:
    """Survival of the fine-tune at a level that rounds a weight by `noise`.

    `change` is the median over tensors of mean |Δ| / mean |W|. `visible` counts the tensors (of `tensors`)
    whose change stands out from the level's rounding (`stands_out`). Tensors without a spectral norm, which
    are DoRA's, are in neither count. `lost` decides, because it measures what both do to the outputs: the
    level's divergence from the 16-bit model over the untuned base's, None if one of them was not measured.
    """

    level: str
    noise: float
    change: float
    visible: int
    tensors: int
    lost: float | None

    @property
    def warning(self) -> str:
        """Warning; "" if the outputs show that the fine-tune survives, or if it stands out from the rounding
        in most tensors.
        """
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
    """Return for each level whether the fine-tune survives it."""
    ratios = [tensor.relative_change for tensor in adapters if tensor.relative_change is not None]
    if not ratios:
        return []
    drifts = {model: evaluation.kld_mean for model, evaluation in evaluations.items()}
    effect = drifts.get(UNTUNED + reference)
    spectral = [tensor for tensor in adapters if tensor.spectral_update is not None]

    def lost(level: str) -> float | None:
        drift = drifts.get(level)
        return drift / effect if drift is not None and effect else None

    return [
        Survival(
            level,
            rounding,
            median(ratios),
            sum(stands_out(tensor, rounding) for tensor in spectral),
            len(spectral),
            lost(level),
        )
        for level, rounding in noises.items()
    ]


def stands_out(tensor: MergedTensor, noise: float) -> bool:
    """Return True if the change stands out from the tensor's rounding noise.

    Rounding errors are independent, the change is not. It stands out from an m × n weight as soon as its
    largest singular value exceeds s · (mn)^¼, with s the noise of one weight (Benaych-Georges and Nadakuditi,
    "The singular values and vectors of low rank perturbations of large rectangular random matrices", 2012).
    So a change far below the rounding of each weight can be plainly visible.
    """
    largest = tensor.spectral_update or 0.0
    return bool(largest > noise * tensor.rms_weight * (tensor.rows * tensor.columns) ** 0.25)


def share(value: float) -> str:
    """Format a share of 1 as percent with three significant digits: 0.784 %."""
    return f"{value * 100:.3g} %"
