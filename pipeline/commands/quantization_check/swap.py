"""Two adapters on one NF4 base: switching gives each one's own outputs, and none gives the base's, bit for
bit.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.commands.quantization_check.adapters import put_adapter
from pipeline.commands.quantization_check.outputs import last_logits
from pipeline.core.checks import Check
from pipeline.llamacpp.logits import Floats
from pipeline.stages.parity.check import count_check

NAMES = ("first", "second")


def swap_line(model: Any, config: Any, rows: list[list[int]], adapters: Sequence[Path] = ()) -> Check:
    """Proof that adapters can be switched on `model`, a quantized base without one; it is left without one.

    Each of the two `adapters` (folders; without them two random ones as `config` says) is first measured
    alone on the base, then both are put on it and switched: first, second, first, none.
    """

    def put_on(bare: Any, name: str) -> Any:
        number = NAMES.index(name)
        return put_adapter(bare, adapters[number] if adapters else None, config, name, 1 + number)

    bare = last_logits(model, rows)
    alone = {}
    for name in NAMES:
        adapted = put_on(model, name)
        alone[name] = last_logits(adapted, rows)
        model = adapted.unload()
    title, what = (
        "Two adapters on one NF4 base",
        "switches whose logits differ from the adapter's alone (the last: the base's)",
    )
    which = (
        " and ".join(f"{one.parent.name}/{one.name}" for one in adapters)
        or "two random adapters, for no two saved ones are here"
    )
    if same(alone["first"], alone["second"]) or same(alone["first"], bare):
        return Check(
            title,
            "not measured",
            f"the adapters say the same or nothing, so switching proves nothing; {which}",
            what=what,
        )
    adapted = put_on(put_on(model, "first"), "second")
    pairs: list[tuple[list[Floats], list[Floats]]] = []
    for name in ("first", "second", "first"):
        adapted.set_adapter(name)
        pairs.append((last_logits(adapted, rows), alone[name]))
    with adapted.disable_adapter():
        pairs.append((last_logits(adapted, rows), bare))
    adapted.unload()
    different = [number for number, pair in enumerate(pairs, 1) if not same(*pair)]
    line = count_check(title, what, len(different), len(pairs), f"switch {different[0]}" if different else "")
    return replace(line, sentence=f"{line.sentence}; {which}")


def same(one: list[Floats], other: list[Floats]) -> bool:
    """Whether two runs' logits are equal bit for bit."""
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
