"""Show how much an adapter changes each layer and module: norms of A, B and of the update s·B·A.

Reads a PEFT folder or any adapter's GGUF. With --base, reads also the weights that it changes, for the
relative change. Other parts of an adapter (magnitudes, biases, whole tensors) are named and not counted.
Writes nothing; needs no params.yaml and no PyTorch.

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
    """Print the norms. Raises the same errors as `adapter_norms`."""
    norms = adapter_norms(adapter, base)
    also = uncounted(adapter)
    if as_json:
        if also:
            print(also, file=sys.stderr)
        print(json.dumps([tensor._asdict() for tensor in norms], indent=2, ensure_ascii=False))
        return
    console = wide_console()
    shown = [tensor._replace(module=together(tensor.module)) for tensor in norms]
    console.print(_by_module(shown))
    console.print(_by_layer(shown))
    idle = [tensor.tensor for tensor in norms if not tensor.norm_update]
    if idle:
        console.print(f"{len(idle)} of {len(norms)} change nothing, first {idle[0]}", markup=False)
    if also:
        console.print(also, markup=False)


def _by_module(norms: Sequence[Norms]) -> object:
    """Return a table of means by module, over all experts together."""
    table = plain_table(
        "module", "tensors", "rank", "scale", "‖A‖", "‖B‖", "‖s·B·A‖", "÷ ‖W‖", numbers=range(1, 8)
    )
    for module in modules_of((0, tensor.module) for tensor in norms):
        of_module = [tensor for tensor in norms if tensor.module == module]
        shares = [tensor.relative for tensor in of_module if tensor.relative is not None]
        table.add_row(
            module,
            str(len(of_module)),
            _range([tensor.rank for tensor in of_module]),
            _range([tensor.scale for tensor in of_module]),
            *(
                f"{fmean(getattr(tensor, key) for tensor in of_module):.4g}"
                for key in ("norm_a", "norm_b", "norm_update")
            ),
            f"{fmean(shares):.3%}" if shares else "–",
        )
    return table


def _range(values: Sequence[float]) -> str:
    least = min(values)
    most = max(values)
    return f"{least:g}" if least == most else f"{least:g}–{most:g}"


def _by_layer(norms: Sequence[Norms]) -> object:
    """Return a table of ‖s·B·A‖ by layer and module. A layer's experts are counted together."""
    modules = modules_of((0, tensor.module) for tensor in norms)
    short = [module.partition(".")[2] or module for module in modules]
    table = plain_table("‖s·B·A‖", *short, numbers=range(1, len(modules) + 1))
    layers = sorted({tensor.layer for tensor in norms}, key=lambda layer: (layer is None, layer or 0))
    for layer in layers:
        cells = [
            [tensor.norm_update for tensor in norms if tensor.layer == layer and tensor.module == module]
            for module in modules
        ]
        name = "outside the layers" if layer is None else f"layer {layer}"
        table.add_row(name, *(f"{hypot(*cell):.4g}" if cell else "–" for cell in cells))
    return table
