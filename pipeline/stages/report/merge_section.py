"""The report's section on the merge: which base weights were chosen and why, how far the adapter moved them,
and whether that outlives rounding.

Figures are those of `reports/merge.json`, of the levels' weights in `reports/parity.json` and of the
evaluations.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from pipeline.pages.heat_map import Figures, by_cell, heat_map, modules_of
from pipeline.pages.parity_summary import place_of

MERGE_BASES = {"16-bit": "16-bit base", "nf4": "NF4 base"}
LOST = 0.25  # of what the fine-tune changed: from here on a level is said to lose it
Adapters = Sequence[Mapping[str, Any]]


def merge_values(
    merge: Mapping[str, Any],
    parity: Mapping[str, Any],
    evaluations: Mapping[str, Mapping[str, Any]],
    reference: str,
) -> dict[str, Any]:
    """What the section's template needs; `reference` is the 16-bit model's name, and "base-" before it that
    of the untuned base.
    """
    adapters = merge.get("adapters") or ()  # PEFT's own merge tells of none
    changes = by_place(adapters, "relative_change")
    levels = survival(adapters, noise(parity), evaluations, reference)
    return {
        "merge_base": MERGE_BASES[merge["merge_base"]],
        "candidates": candidates(merge),
        "levels": levels,
        "maps": {
            "change": heat_map(changes, share),
            "nf4": heat_map(by_place(adapters, "nf4_error_to_update"), times),
        },
        "changes": table(changes),
        "outside": [
            (one["tensor"], share(one["relative_change"]))
            for one in adapters
            if one["layer"] is None and one["relative_change"]
        ],
        "warnings": [*merge.get("warnings", ()), *(row["warning"] for row in levels if row["warning"])],
    }


def by_place(adapters: Adapters, key: str) -> dict[tuple[int, str], list[float | None]]:
    """One figure of every adapted tensor by (layer, module)."""
    found: dict[tuple[int, str], list[float | None]] = {}
    for one in adapters:
        if one.get("layer") is not None:
            found.setdefault((one["layer"], one["module"]), []).append(one.get(key))
    return {} if all(value is None for values in found.values() for value in values) else found


def table(figures: Figures) -> dict[str, Any]:
    """The map's figures to be read as numbers: {"modules", "rows": [(layer, a text per module)]}."""
    cells = by_cell(figures)
    modules = modules_of(cells)
    return {
        "modules": modules,
        "rows": [
            (layer, [share(fmean(found)) if (found := cells.get((layer, one))) else "–" for one in modules])
            for layer in sorted({layer for layer, _ in cells})
        ],
    }


def candidates(merge: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each merge at each level that was measured, the levels together; those at the deciding level
    of the chosen merge are marked.
    """
    measured, decides = merge.get("candidates") or {}, merge.get("deciding_level")
    return [
        {
            "merge_base": MERGE_BASES[merge_base],
            "model": model,
            "chosen": merge_base == merge["merge_base"] and model == decides,
            **measured[merge_base][model],
        }
        for model in list(dict.fromkeys(model for levels in measured.values() for model in levels))
        for merge_base in measured
        if model in measured[merge_base]
    ]


def noise(parity: Mapping[str, Any]) -> dict[str, float]:
    """Mean relative rounding error (RMSE) of each level's tensors, as the parity checks measured it."""
    return {
        place_of(check): value
        for key, check in parity["checks"].items()
        if key.startswith("weights_") and (value := (check.get("figures") or {}).get("rmse_mean"))
    }


def survival(
    adapters: Adapters,
    noises: Mapping[str, float],
    evaluations: Mapping[str, Mapping[str, Any]],
    reference: str,
) -> list[dict[str, Any]]:
    """Whether the fine-tune outlives each level: {"level", "noise", "change", "visible", "tensors", "lost",
    "warning"}.

    `change` is the median over tensors of mean |Δ| / mean |W|, `visible` counts those of `tensors` whose
    change stands out of the level's rounding (`stands_out`); tensors without a spectral norm, DoRA's, are in
    neither. What decides is `lost`, what both do to the outputs: the level's divergence from the 16-bit model
    over the untuned base's, None where one of them was not measured.
    """
    ratios = [one["relative_change"] for one in adapters if one["relative_change"] is not None]
    if not ratios:
        return []
    effect = (evaluations.get(f"base-{reference}") or {}).get("kld_mean")
    known = [one for one in adapters if one["spectral_update"] is not None]
    rows = []
    for level, rounding in noises.items():
        drift = (evaluations.get(level) or {}).get("kld_mean")
        row = {
            "level": level,
            "noise": rounding,
            "change": median(ratios),
            "visible": sum(stands_out(one, rounding) for one in known),
            "tensors": len(known),
            "lost": drift / effect if drift is not None and effect else None,
        }
        rows.append(row | {"warning": _warning(row)})
    return rows


def stands_out(adapter: Mapping[str, Any], noise: float) -> bool:
    """Whether the change can be told from rounding noise of the same tensor.

    Rounding errors are independent, the change is not: it stands out of an m × n weight as soon as its
    largest singular value exceeds s · (mn)^¼, s being the noise of one weight (Benaych-Georges and
    Nadakuditi, "The singular values and vectors of low rank perturbations of large rectangular random
    matrices", 2012). So a change far below the rounding of each weight can be plain to see.
    """
    return bool(
        adapter["spectral_update"]
        > noise * adapter["rms_weight"] * (adapter["rows"] * adapter["columns"]) ** 0.25
    )


def _warning(row: Mapping[str, Any]) -> str:
    """Nothing where the fine-tune is seen to survive, or stands out of the rounding in most tensors."""
    if row["lost"] is not None and row["lost"] >= LOST:
        return (
            f"The fine-tune will not survive {row['level']}: it loses {row['lost']:.0%} of what the "
            "fine-tune changed in the outputs."
        )
    if row["lost"] is None and row["visible"] * 2 < row["tensors"]:
        seen = (
            f"its change stands out of the level's rounding in {row['visible']} of {row['tensors']} tensors"
        )
        return (
            f"The fine-tune may not survive {row['level']}: {seen}, and what that does to the outputs "
            "was not measured."
        )
    return ""


def share(value: float) -> str:
    """A share of 1 with three significant digits: 0.784 %."""
    return f"{value * 100:.3g} %"


def times(value: float) -> str:
    """12.3 ×."""
    return f"{value:.3g} ×"
