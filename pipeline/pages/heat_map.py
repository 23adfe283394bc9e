"""A heat map of layers × modules as a table of colored cells: one hue from pale to full, so that lightness is
enough to read it.

The template `heat_map.html.jinja` shows it. Colors are classes of the page's style (`heat-1` … `heat-7`),
steps of equal ratio. A value of exactly 0 and a missing measurement have marks of their own. Every cell has
its figure as a title, every module its mean.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from pipeline.config.targets import together

STEPS = 7
ORDER = (
    "q_proj",
    "k_proj",
    "v_proj",
    "qkv_proj",
    "o_proj",
    "gate",
    "gate_proj",
    "up_proj",
    "gate_up_proj",
    "down_proj",
)

Figures = Mapping[tuple[int, str], Sequence[float | None]]
Shown = Callable[[float], str]


def heat_map(figures: Figures, shown: Shown) -> dict[str, Any] | None:
    """Return one cell for each (layer, module) of `figures`, which contain a figure (0 or more) per tensor,
    None for one that was not measured.

    A layer's experts share a cell, which has their mean. `shown` formats a figure. Returns the values for the
    template, None if no figure is above 0.
    """
    cells = by_cell(figures)
    averages = [fmean(values) for values in cells.values() if values]
    if not any(averages):
        return None
    low = min(value for value in averages if value)
    high = max(averages)
    layers = range(max(layer for layer, _ in cells) + 1)
    rows = []
    for module in modules_of(cells):
        by_layer = {layer: cells[layer, module] for layer in layers if (layer, module) in cells}
        measured = [fmean(values) for values in by_layer.values() if values]
        rows.append(
            {
                "module": module,
                "mean": shown(fmean(measured)) if measured else "–",
                "cells": [
                    _cell(by_layer[layer], f"layer {layer}, {module}", (low, high), shown)
                    if layer in by_layer
                    else None
                    for layer in layers
                ],
            }
        )
    means = ", ".join(f"{row['module']} {row['mean']}" for row in rows)
    least = shown(min(averages))
    most = shown(high)
    steps = range(STEPS + 1 if high > low else 1)
    return {
        "rows": rows,
        "layers": len(layers),
        # Layers that share a number, which needs some room.
        "every": next(step for step in (1, 5, 10, 20, 50, 100) if len(layers) <= 24 * step or step == 100),
        # The figures between the steps.
        "bounds": [shown(low * (high / low) ** (step / STEPS)) for step in steps],
        "marks": {"nothing learned": 0 in averages, "not measured": not all(cells.values())},
        "description": f"{len(layers)} layers, {least} to {most}; means by module: {means}.",
    }


def by_cell(figures: Figures) -> dict[tuple[int, str], list[float]]:
    """Return the figures that were measured by layer and by module, a layer's experts together under their
    module's name without a number.
    """
    cells: dict[tuple[int, str], list[float]] = {}
    for (layer, module), values in figures.items():
        cells.setdefault((layer, together(module)), []).extend(
            value for value in values if value is not None and math.isfinite(value)
        )
    return cells


def modules_of(cells: Iterable[tuple[int, str]]) -> list[str]:
    """Return the modules of some cells in the map's order: attention first, then as a layer computes."""
    return sorted({module for _, module in cells}, key=_rank)


def _rank(module: str) -> tuple[bool, int, str]:
    last = module.rpartition(".")[2]
    return "attn" not in module, ORDER.index(last) if last in ORDER else len(ORDER), module


def _cell(values: Sequence[float], where: str, span: tuple[float, float], shown: Shown) -> tuple[str, str]:
    """Return a cell's class and its title."""
    if not values:
        return "heat-open", f"{where}: not measured"
    spread = ""
    if len(values) > 1:
        spread = f" (mean of {len(values)}, {shown(min(values))} to {shown(max(values))})"
    if not any(values):
        return "heat-zero", f"{where}: {shown(0.0)}, nothing learned{spread}"
    mean = fmean(values)
    return f"heat-{_step(mean, *span)}", f"{where}: {shown(mean)}{spread}"


def _step(value: float, low: float, high: float) -> int:
    """Return 1 to `STEPS`, by equal ratios between the least and the largest figure."""
    if high <= low:
        return STEPS
    share = STEPS * math.log(value / low) / math.log(high / low)
    return 1 + min(STEPS - 1, int(share))
