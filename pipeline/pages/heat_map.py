"""A heat map of layers × modules as inline SVG: one hue from pale to full, so that it is read by lightness
alone.

Colors are classes of the page's style (`heat-1` … `heat-7`), steps of equal ratio; what is exactly 0 and what
was not measured have marks of their own. Every cell has its figure as a title, every module its mean in
words.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from xml.sax.saxutils import escape

from pipeline.pages.svg import short, svg, text

STEPS = 7
# units of the viewBox: names end left of LEFT, the cells reach to RIGHT at most, the means stand behind them
WIDTH, LEFT, RIGHT, TOP, ROW = 760.0, 190.0, 690.0, 4.0, 22.0
WIDEST = 28.0  # a cell, where there are few layers
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
EXPERT = re.compile(r"\bexperts\.\d+\b")

Figures = Mapping[tuple[int, str], Sequence[float | None]]
Shown = Callable[[float], str]


def heat_map(name: str, title: str, figures: Figures, shown: Shown) -> str:
    """One cell for each (layer, module) of `figures`, which hold a figure (0 or more) per tensor, None for
    one that was not measured.

    A layer's experts share a cell, which has their mean. `shown` writes a figure. Returns SVG, "" where no
    figure is above 0.
    """
    cells = by_cell(figures)
    known = [fmean(values) for values in cells.values() if values]
    if not any(known):
        return ""
    span = min(value for value in known if value), max(known)
    layers = range(max(layer for layer, _ in cells) + 1)
    modules = modules_of(cells)
    wide = min(WIDEST, (RIGHT - LEFT) / len(layers))
    parts, means = [], []
    for row, module in enumerate(modules):
        y = TOP + row * ROW
        there = {layer: cells[layer, module] for layer in layers if (layer, module) in cells}
        parts += [
            _cell((LEFT + layer * wide, y, wide), f"layer {layer}, {module}", values, span, shown)
            for layer, values in there.items()
        ]
        measured = [fmean(values) for values in there.values() if values]
        mean = shown(fmean(measured)) if measured else "–"
        means.append(f"{module} {mean}")
        parts.append(text(LEFT - 10, y + 15, module, "heat-name", anchor="end", longest=27))
        parts.append(text(LEFT + len(layers) * wide + 10, y + 15, mean, "heat-name"))
    bottom = TOP + len(modules) * ROW
    parts += _axis(bottom + 15, layers, wide)
    parts += _legend(
        bottom + 36, span, shown, {"nothing learned": 0 in known, "not measured": not all(cells.values())}
    )
    low, high = shown(min(known)), shown(max(known))
    description = f"{len(layers)} layers, {low} to {high}; means by module: {', '.join(means)}."
    return svg(name, "heat", (WIDTH, bottom + 64), title, description, parts)


def by_cell(figures: Figures) -> dict[tuple[int, str], list[float]]:
    """The figures that were measured by layer and by module, a layer's experts together under their module's
    name without a number.
    """
    cells: dict[tuple[int, str], list[float]] = {}
    for (layer, module), values in figures.items():
        cells.setdefault((layer, EXPERT.sub("experts", module)), []).extend(
            value for value in values if value is not None
        )
    return cells


def modules_of(cells: Iterable[tuple[int, str]]) -> list[str]:
    """The modules of some cells in the map's order: attention first, then as a layer computes."""
    return sorted({module for _, module in cells}, key=_rank)


def _rank(module: str) -> tuple[bool, int, str]:
    last = module.rpartition(".")[2]
    return "attn" not in module, ORDER.index(last) if last in ORDER else len(ORDER), module


def _cell(
    place: tuple[float, float, float],
    where: str,
    values: Sequence[float],
    span: tuple[float, float],
    shown: Shown,
) -> str:
    x, y, wide = place
    if not values:
        kind, words = "heat-open", "not measured"
    elif not any(values):
        kind, words = "heat-zero", f"{shown(0.0)}, nothing learned"
    else:
        kind, words = f"heat-{_step(fmean(values), span)}", shown(fmean(values))
    if len(values) > 1:
        words += f" (mean of {len(values)}, {shown(min(values))} to {shown(max(values))})"
    gap = 1.0 if wide > 4 else 0.0
    box = f'x="{short(x)}" y="{short(y)}" width="{short(wide - gap)}" height="{short(ROW - 1)}"'
    return f'<rect class="{kind}" {box}><title>{escape(where)}: {escape(words)}</title></rect>'


def _step(value: float, span: tuple[float, float]) -> int:
    """1 to `STEPS`, by equal ratios between the least and the largest figure."""
    low, high = span
    return (
        1 + min(STEPS - 1, int(STEPS * math.log(value / low) / math.log(high / low))) if high > low else STEPS
    )


def _axis(y: float, layers: range, wide: float) -> list[str]:
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100) if step * wide >= 24 or step == 100)
    numbers = [
        text(LEFT + (layer + 0.5) * wide, y, str(layer), "heat-quiet", anchor="middle")
        for layer in layers
        if layer % every == 0
    ]
    return [
        text(LEFT - 10, y, "layer", "heat-quiet", anchor="end"),
        *numbers,
        text(LEFT + len(layers) * wide + 10, y, "mean", "heat-quiet"),
    ]


def _legend(y: float, span: tuple[float, float], shown: Shown, marks: Mapping[str, bool]) -> list[str]:
    """The steps with the figures between them, then those marks that occur."""
    low, high = span
    wide = 44.0
    steps = range(STEPS if high > low else 1)
    parts = [
        _swatch(LEFT + step * wide, y, wide - 1, f"heat-{step + 1 if high > low else STEPS}")
        for step in steps
    ]
    bounds = [low * (high / low) ** (step / len(steps)) for step in range(len(steps) + 1)]
    # the figures of all would touch
    some = [(at, bound) for at, bound in enumerate(bounds) if at in (0, 2, 5, len(steps))]
    parts += [
        text(LEFT + at * wide, y + 23, shown(bound), "heat-quiet", anchor="middle") for at, bound in some
    ]
    x = LEFT + len(steps) * wide + 34
    for words, kind in (("nothing learned", "heat-zero"), ("not measured", "heat-open")):
        if marks[words]:
            parts += [_swatch(x, y, 14, kind), text(x + 20, y + 10, words, "heat-quiet")]
            x += 106
    return parts


def _swatch(x: float, y: float, wide: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{short(x)}" y="{short(y)}" width="{short(wide)}" height="11"/>'
