"""Whether every number that training multiplies with is finite: dequantized weights, the adapter's matrices,
its linears' outputs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.core.errors import GateError


def dequantization_is_finite(model: Any) -> int:
    """How many NF4 linears there are, each proven to give finite weights; `GateError` names the first that
    doesn't.

    One linear's weights are in memory at a time. Cheap enough to do before a run's first step.
    """
    from bitsandbytes.functional import dequantize_4bit

    linears = nf4_linears(model)
    for name, linear in linears.items():
        if not dequantize_4bit(linear.weight.data, linear.weight.quant_state).isfinite().all():
            raise GateError(
                "Q-MODELS-008",
                f"{name} holds weights that are not finite once dequantized: run stage base again, its file "
                "or this copy is damaged",
            )
    return len(linears)


def adapter_is_finite(model: Any) -> int:
    """How many matrices the adapter has, each proven finite; `GateError` names the first that isn't. Cheap at
    any step.
    """
    matrices = {name: weight for name, weight in model.named_parameters() if "lora_" in name}
    for name, weight in matrices.items():
        if not weight.isfinite().all():
            raise GateError(
                "Q-MODELS-011",
                f"{name} is not finite: lower train.learning_rate, and start again with `python -m pipeline "
                "train --no-resume`",
            )
    return len(matrices)


def finite_record(model: Any) -> dict[str, int]:
    """What was proven finite, for the record of a run."""
    return {
        "nf4_linears_finite": dequantization_is_finite(model),
        "quantized_tensors_finite": quantized_is_finite(model),
        "adapter_matrices_finite": adapter_is_finite(model),
    }


def quantized_is_finite(model: Any) -> int:
    """How many quantized linears and tables there are, each proven finite block by block; `GateError` names
    the first that isn't.
    """
    from pipeline.gguf.dequantize import dequantize
    from pipeline.models.quantized_linear import row_blocks

    quantized = {
        id(module.weight): (name, module)
        for name, module in model.named_modules()
        if hasattr(module, "logical")
    }  # a tied head once
    for name, module in quantized.values():
        rows = module.weight.shape[0]
        for first, last in row_blocks(rows, module.logical // rows):
            if not dequantize(module.weight[first:last], module.ggml_type).isfinite().all():
                raise GateError(
                    "Q-MODELS-008",
                    f"{name} holds weights that are not finite once dequantized: run stage base again, its "
                    "file or this copy is damaged",
                )
    return len(quantized)


def nf4_linears(model: Any) -> dict[str, Any]:
    """Every linear in NF4, by its name in the base (without PEFT's prefix and wrapping)."""
    found = {
        name: module
        for name, module in model.named_modules()
        if getattr(getattr(module, "weight", None), "quant_state", None) is not None
    }
    # PEFT's layer answers for its base layer's weight too: take the linear itself
    return {
        name.removeprefix("base_model.model.").removesuffix(".base_layer"): module
        for name, module in found.items()
        if not hasattr(module, "base_layer")
    }


@contextmanager
def outputs_watched(model: Any) -> Iterator[list[int]]:
    """Inside, every output of a linear with an adapter must be finite; `GateError` names the first that
    isn't. Gives a count of outputs, as [n].
    """
    from peft.tuners.lora import LoraLayer

    seen = [0]

    def look(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            seen[0] += 1
            if not output.isfinite().all():
                raise GateError(
                    "Q-MODELS-012",
                    f"{name} gives numbers that are not finite: its base or its adapter is damaged, train "
                    "again",
                )

        return hook

    handles = [
        module.register_forward_hook(look(name))
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer)
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
