"""Tensors of a model: their bytes, and a check that their numbers are finite."""

from collections.abc import Iterable, Iterator
from typing import Any


def frozen_tensors(model: Any) -> Iterator[Any]:
    """Yield every tensor of the base: weights, buffers, and the scales and tables that NF4 keeps with a
    weight. A sharded weight gives this process's part.
    """
    for weight in model.parameters():
        if not weight.requires_grad:
            yield weight.to_local() if hasattr(weight, "to_local") else weight
    yield from model.buffers()
    states = {id(state): state for state in map(nf4_state, model.modules()) if state is not None}
    for state in states.values():
        yield from (state.absmax, state.code)
        if state.nested:
            yield from (state.offset, state.state2.absmax, state.state2.code)


def nf4_state(linear: Any) -> Any:
    """Return how bitsandbytes quantized a linear; None if it is not in NF4.

    A sharded weight doesn't tell (`pipeline.models.sharded`).
    """
    of_weight = getattr(getattr(linear, "weight", None), "quant_state", None)
    return getattr(linear, "quant_state", None) if of_weight is None else of_weight


def tensor_bytes(tensors: Iterable[Any]) -> int:
    """Return the bytes of the tensors' elements; a tensor that is listed twice (a tied head) counts once."""
    return sum({tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors}.values())


def full_weight(weight: Any) -> Any:
    """Return the entire weight.

    If it is sharded (`pipeline.models.sharded`), all processes have to call this.
    """
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def all_finite(values: Any) -> bool:
    """Return True if no number is infinite or NaN, by the smallest and the largest: `isfinite` allocates
    three tensors, 60 times as slow on a CPU.
    """
    return not values.numel() or all(bool(end.isfinite()) for end in values.detach().aminmax())
