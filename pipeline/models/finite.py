"""Prove that all that training multiplies with is finite: dequantized weights, adapter, linears' outputs."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pipeline.core.errors import GateError
from pipeline.models.tensors import all_finite, full_weight, nf4_state
from pipeline.models.tuners import tuner_on

DAMAGED = (
    "Q-MODELS-008",
    "holds weights that are not finite once dequantized: compare the sha256 of the model's file with its "
    "publisher's, and fetch it again if they differ; otherwise take another base",
)
DIVERGED = (
    "Q-MODELS-011",
    "is not finite: lower train.learning_rate, and start again with `python -m pipeline train --no-resume`",
)


def finite_record(model: Any) -> dict[str, int]:
    """Return the counts of what was proven finite, for the record of a run."""
    return {
        "nf4_linears_finite": dequantization_is_finite(model),
        "quantized_tensors_finite": quantized_is_finite(model),
        "adapter_matrices_finite": adapter_is_finite(model),
    }


def dequantization_is_finite(model: Any) -> int:
    """Count the NF4 linears, each proven to give finite weights.

    Raises `GateError` naming the first that doesn't. One linear's weights are in memory at a time. Cheap
    enough to do before a run's first step.
    """
    from bitsandbytes.functional import dequantize_4bit

    linears = nf4_linears(model).items()
    weights = (
        # The weight itself may be in main memory (`pipeline.models.offload`).
        (name, dequantize_4bit(full_weight(linear.weight).data.to(state.absmax.device), state))
        for name, linear in linears
        for state in (nf4_state(linear),)
    )
    return _count_finite(weights, *DAMAGED)


def adapter_is_finite(model: Any) -> int:
    """Count the trained tensors of an adapter or of scales, each proven finite. Raises `GateError` naming the
    first that isn't. Cheap at any step.
    """
    matrices = ((name, weight) for name, weight, _ in tuner_on(model).numbers(model))
    return _count_finite(matrices, *DIVERGED)


def quantized_is_finite(model: Any) -> int:
    """Count quantized linears and tables, proven finite by block.

    Raises `GateError` naming the first that isn't.
    """
    from pipeline.gguf.dequantize import dequantize
    from pipeline.models.quantized_linear import row_blocks

    modules = {
        id(module.weight): (name, module)
        for name, module in model.named_modules()
        if hasattr(module, "logical")
    }  # A tied head is counted once.
    blocks = (
        (name, dequantize(weight[block], module.ggml_type))
        for name, module in modules.values()
        for weight in (full_weight(module.weight),)
        for block in row_blocks(weight, module.logical // len(weight))
    )
    return _count_finite(blocks, *DAMAGED)


def _count_finite(values: Iterable[tuple[str, Any]], id: str, fault: str) -> int:
    """Return the number of names in `values`. Raises `GateError` with `id` and `fault` for the first tensor
    that is not finite.
    """
    names = set()
    for name, tensor in values:
        if not all_finite(tensor):
            raise GateError(id, f"{name} {fault}")
        names.add(name)
        del tensor  # Free it before the next is computed.
    return len(names)


def nf4_linears(model: Any) -> dict[str, Any]:
    """Return every linear in NF4, by its name in the base (without PEFT's prefix and wrapping)."""
    modules = {name: module for name, module in model.named_modules() if nf4_state(module) is not None}
    # PEFT's layer answers for its base layer's weight too, so take the linear itself.
    return {
        name.removeprefix("base_model.model.").removesuffix(".base_layer"): module
        for name, module in modules.items()
        if not hasattr(module, "base_layer")
    }


@contextmanager
def outputs_watched(model: Any) -> Iterator[list[int]]:
    """Check that every output of a linear with an adapter is finite while the body runs. Yields the count of
    outputs, as [n]. Raises `GateError` naming the first linear with another output.
    """
    from peft.tuners.lora import LoraLayer

    seen = [0]

    def look(name: str, module: Any, inputs: Any, output: Any) -> None:
        seen[0] += 1
        if not all_finite(output):
            raise GateError(
                "Q-MODELS-012",
                f"{name} gives numbers that are not finite: its base or its adapter is damaged, train again",
            )

    handles = [
        module.register_forward_hook(partial(look, name))
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer)
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
