"""A model's tensors: their bytes, and whether their numbers are finite."""

from collections.abc import Iterable, Iterator
from typing import Any


def frozen_tensors(model: Any) -> Iterator[Any]:
    """Every tensor of the base: weights, buffers, and the scales and tables that NF4 keeps beside a weight;
    of what is shared out this process's part.
    """
    for weight in model.parameters():
        if not weight.requires_grad:
            yield weight.to_local() if hasattr(weight, "to_local") else weight
    yield from model.buffers()
    states = {id(state): state for module in model.modules() if (state := nf4_state(module)) is not None}
    for state in states.values():
        yield from (state.absmax, state.code)
        if state.nested:
            yield from (state.offset, state.state2.absmax, state.state2.code)


def nf4_state(linear: Any) -> Any:
    """How bitsandbytes has quantized a linear, None if it is not in NF4. Its weight doesn't say so where it
    is shared out (`pipeline.models.sharded`).
    """
    of_weight = getattr(getattr(linear, "weight", None), "quant_state", None)
    return getattr(linear, "quant_state", None) if of_weight is None else of_weight


def tensor_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of the tensors' own elements; one that is there twice (a tied head) counts once."""
    return sum({tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors}.values())


def whole(weight: Any) -> Any:
    """A weight; all of it if it is shared out (`pipeline.models.sharded`): then all processes have to ask."""
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def all_finite(values: Any) -> bool:
    """Whether no number is infinite or NaN, by the smallest and the largest: `isfinite` makes three tensors
    on its way, 60 times as slow on a CPU.
    """
    return not values.numel() or all(bool(end.isfinite()) for end in values.detach().aminmax())
