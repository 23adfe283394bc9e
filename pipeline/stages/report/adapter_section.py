"""The report's section on the adapter: how much its matrices change each layer and module."""

from collections.abc import Sequence
from math import hypot
from typing import Any

from pipeline.metrics.adapter_norms import Norms
from pipeline.pages.heat_map import heat_map


def adapter_values(norms: Sequence[Norms]) -> dict[str, Any] | None:
    """What the section's template needs; None where no adapter was trained."""
    if not norms:
        return None
    places: dict[tuple[int, str], list[float | None]] = {}
    for one in norms:
        if one.layer is not None:
            places.setdefault((one.layer, one.module), []).append(one.norm_update)
    return {
        "map": heat_map(places, "{:.3g}".format),
        "tensors": len(norms),
        "total": f"{hypot(*(one.norm_update for one in norms)):.4g}",
        "a": f"{hypot(*(one.norm_a for one in norms)):.4g}",
        "b": f"{hypot(*(one.norm_b for one in norms)):.4g}",
        "largest": [
            (one.tensor, f"{one.norm_update:.3g}")
            for one in sorted(norms, key=lambda one: -one.norm_update)[:3]
        ],
        "idle": [one.tensor for one in norms if not one.norm_update],
    }
