"""Show how much an adapter changes each layer and module: norms of A, B and of the update s·B·A.

Reads a PEFT folder or an adapter's GGUF, of anybody; with --base also the weights that it changes, for the
change relative to them. What else an adapter changes (magnitudes, biases, whole tensors) is named and not
counted. Writes nothing, needs no params.yaml and no PyTorch.

    quench model norms models/adapter --base models/base
"""

import json
import sys
from collections.abc import Sequence
from math import hypot
from pathlib import Path
from statistics import fmean

from pipeline.commands.terminal import plain_table, wide_console
from pipeline.config.targets import together
from pipeline.metrics.adapter_norms import Norms, adapter_norms, uncounted
from pipeline.pages.heat_map import modules_of


def main(adapter: Path, base: Path | None, *, as_json: bool) -> None:
    """Print the norms. Raises what `adapter_norms` does."""
    found, also = adapter_norms(adapter, base), uncounted(adapter)
    if as_json:
        if also:
            print(also, file=sys.stderr)
        print(json.dumps([one._asdict() for one in found], indent=2, ensure_ascii=False))
        return
    console = wide_console()
    shown = [one._replace(module=together(one.module)) for one in found]
    console.print(_by_module(shown))
    console.print(_by_layer(shown))
    idle = [one.tensor for one in found if not one.norm_update]
    if idle:
        console.print(f"{len(idle)} of {len(found)} change nothing, first {idle[0]}", markup=False)
    if also:
        console.print(also, markup=False)


def _by_module(found: Sequence[Norms]) -> object:
    """Means by module, of all experts together."""
    table = plain_table(
        "module", "tensors", "rank", "scale", "‖A‖", "‖B‖", "‖s·B·A‖", "÷ ‖W‖", numbers=range(1, 8)
    )
    for module in modules_of((0, one.module) for one in found):
        mine = [one for one in found if one.module == module]
        shares = [one.relative for one in mine if one.relative is not None]
        table.add_row(
            module,
            str(len(mine)),
            _range([one.rank for one in mine]),
            _range([one.scale for one in mine]),
            *(
                f"{fmean(getattr(one, key) for one in mine):.4g}"
                for key in ("norm_a", "norm_b", "norm_update")
            ),
            f"{fmean(shares):.3%}" if shares else "–",
        )
    return table


def _range(values: Sequence[float]) -> str:
    least, most = min(values), max(values)
    return f"{least:g}" if least == most else f"{least:g}–{most:g}"


def _by_layer(found: Sequence[Norms]) -> object:
    """‖s·B·A‖ of every layer and module; of a layer's experts together."""
    modules = modules_of((0, one.module) for one in found)
    short = [module.partition(".")[2] or module for module in modules]
    table = plain_table("‖s·B·A‖", *short, numbers=range(1, len(modules) + 1))
    layers = sorted({one.layer for one in found}, key=lambda layer: (layer is None, layer or 0))
    for layer in layers:
        cells = [
            [one.norm_update for one in found if one.layer == layer and one.module == module]
            for module in modules
        ]
        name = "outside the layers" if layer is None else f"layer {layer}"
        table.add_row(name, *(f"{hypot(*cell):.4g}" if cell else "–" for cell in cells))
    return table
