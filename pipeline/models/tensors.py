"""Bytes of a model's tensors, counted from the tensors themselves."""

from collections.abc import Iterable, Iterator
from typing import Any


def frozen_tensors(model: Any) -> Iterator[Any]:
    """Every tensor of the base: weights, buffers, and the scales and tables that NF4 keeps beside a
    weight.
    """
    yield from (weight for weight in model.parameters() if not weight.requires_grad)
    yield from model.buffers()
    for weight in model.parameters():
        state = getattr(weight, "quant_state", None)
        if state is not None:
            yield from (state.absmax, state.code)
            if state.nested:
                yield from (state.offset, state.state2.absmax, state.state2.code)


def tensor_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of the tensors' own elements; one that is there twice (a tied head) counts once."""
    return sum({tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors}.values())


def whole(weight: Any) -> Any:
    """A weight, or all of one that is shared out (`pipeline.models.sharded`): then all processes have to
    ask.
    """
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight
