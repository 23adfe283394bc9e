"""Two adapters on one NF4 base: switching gives each one's own outputs, and none gives the base's, bit for bit."""

from typing import Any

import numpy as np

from pipeline.fidelity.outputs import last_logits
from pipeline.llamacpp.logits import Floats
from pipeline.seams.seam import Seam, count_seam


def random_adapter(model: Any, config: Any, name: str, seed: int) -> Any:
    """`model` with a fresh adapter `name` whose B is random too, so that it changes something; the same seed gives the same adapter on any base."""
    import torch
    from peft import PeftModel, get_peft_model

    if isinstance(model, PeftModel):
        model.add_adapter(name, config)
    else:
        model = get_peft_model(model, config, adapter_name=name)
    random = torch.Generator().manual_seed(seed)
    for key, weight in sorted(model.named_parameters()):
        if f".lora_A.{name}." in key or f".lora_B.{name}." in key:
            values = torch.randn(weight.shape, generator=random) / weight.shape[1] ** 0.5
            weight.data.copy_(0.1 * values)
    return model


def swap_line(model: Any, config: Any, rows: list[list[int]]) -> Seam:
    """Proof that adapters can be switched on `model`, a quantised base without one; it is left without one.

    Each adapter is first measured alone on the base, then both are put on it and switched: first, second, first, none.
    """
    bare = last_logits(model, rows)
    alone = {}
    for name, seed in (("first", 1), ("second", 2)):
        adapted = random_adapter(model, config, name, seed)
        alone[name] = last_logits(adapted, rows)
        model = adapted.unload()
    adapted = random_adapter(random_adapter(model, config, "first", 1), config, "second", 2)
    pairs: list[tuple[list[Floats], list[Floats]]] = []
    for name in ("first", "second", "first"):
        adapted.set_adapter(name)
        pairs.append((last_logits(adapted, rows), alone[name]))
    with adapted.disable_adapter():
        pairs.append((last_logits(adapted, rows), bare))
    adapted.unload()
    if same(alone["first"], alone["second"]) or same(alone["first"], bare):
        raise AssertionError("the adapters change nothing, so switching them proves nothing")
    title, what = "Two adapters on one NF4 base", "switches whose logits differ from the adapter's alone (the last: the base's)"
    different = [number for number, pair in enumerate(pairs, 1) if not same(*pair)]
    return count_seam(title, what, len(different), len(pairs), f"switch {different[0]}" if different else "")


def same(one: list[Floats], other: list[Floats]) -> bool:
    """Whether two runs' logits are equal bit for bit."""
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
