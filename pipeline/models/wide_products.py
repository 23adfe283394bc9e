"""Products of bfloat16 on a CPU that has no instructions for them, computed as products of float32.

PyTorch's own kernel for them is a plain loop there, ten times slower than a product of float32. So
activations and weights stay in bfloat16, as on other machines. Only the operands of a product are widened,
for as long as it takes. Its sums are float32 and are rounded once, as the instructions would do it.
"""

import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from pipeline.core.cpu import multiplies_bfloat16

# PyTorch's operators that multiply on a CPU → the outputs that have the type of the operands.
OPERATORS = {
    "mm": (0,),
    "addmm": (0,),
    "bmm": (0,),
    "baddbmm": (0,),
    "convolution": (0,),
    "convolution_backward": (0, 1, 2),
    "_scaled_dot_product_flash_attention_for_cpu": (0,),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (0, 1, 2),
}
IN_PLACE = "addmm_"
# Operators of two matrices → the number of the first. PyTorch's own kernel multiplies one of few rows: a row
# by the demo's head takes 41 ms so, and 413 with the head widened for it.
MATRIX = {"mm": 0, "addmm": 1, IN_PLACE: 1}
FEW = 8
# Elements of an operand whose copy uses the same memory again, 64 MB: new pages cost more than the copy.
KEPT = 16 << 20


class _Rooms(threading.local):
    """Memory of a thread for the operand with each number."""

    def __init__(self) -> None:
        self.by_number: dict[int, torch.Tensor] = {}


_rooms = _Rooms()
_libraries: list[Any] = []  # PyTorch forgets the kernels of a library that nothing refers to.


def widen_products() -> None:
    """Let this process compute its products of bfloat16 in float32 from now on, if the CPU has none."""
    if _libraries or multiplies_bfloat16():
        return
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        # That a kernel is replaced is what is wanted here.
        warnings.filterwarnings("ignore", message="Warning only once", category=UserWarning)
        for name in OPERATORS:
            library.impl(name, _widened(name), "CPU", with_keyset=True)
        library.impl(IN_PLACE, _widened_in_place(), "CPU", with_keyset=True)
    _libraries.append(library)


def are_widened() -> bool:
    """Return True if this process computes products of bfloat16 in float32."""
    return bool(_libraries)


def _kernel(name: str) -> Any:
    return torch.library.get_kernel(f"aten::{name}", "CPU")


def _widened(name: str) -> Callable[..., Any]:
    """Return an operator for operands of every type. Those of bfloat16 are widened, its outputs rounded."""
    kernel = _kernel(name)
    outputs = OPERATORS[name]

    def product(keys: Any, *operands: Any, **more: Any) -> Any:
        if _stays(name, operands):
            return kernel.call_boxed(keys, *operands, **more)
        if name == "mm" and operands[1].numel() > KEPT:
            return _in_pieces(partial(kernel.call_boxed, keys), *operands)
        result = kernel.call_boxed(
            keys,
            *(_wide(operand, number) for number, operand in enumerate(operands)),
            **{name: value.float() if _is_bfloat16(value) else value for name, value in more.items()},
        )
        if isinstance(result, torch.Tensor):
            return result.bfloat16()
        return tuple(
            value.bfloat16() if number in outputs and value is not None else value
            for number, value in enumerate(result)
        )

    return product


def _widened_in_place() -> Callable[..., Any]:
    """Return `addmm_`, which changes its first operand, for operands of every type, as `_widened` does."""
    kernel = _kernel(IN_PLACE)

    def product(keys: Any, *operands: Any, **more: Any) -> Any:
        if _stays(IN_PLACE, operands):
            return kernel.call_boxed(keys, *operands, **more)
        result, *others = (_wide(operand, number) for number, operand in enumerate(operands))
        kernel.call_boxed(keys, result, *others, **more)
        return operands[0].copy_(result)

    return product


def _stays(name: str, operands: Sequence[Any]) -> bool:
    """Return True for a product that PyTorch's own kernel computes: of another type, or of a few rows."""
    if not any(map(_is_bfloat16, operands)):
        return True
    return name in MATRIX and len(operands[MATRIX[name]]) <= FEW


def _in_pieces(kernel: Callable[..., Any], left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return left · right, of which `right` is too large to be widened whole: by its columns."""
    wide = _wide(left, 0)
    columns = max(1, KEPT // len(right))
    pieces = (right[:, start : start + columns] for start in range(0, right.shape[1], columns))
    return torch.cat([kernel(wide, _wide(piece, 1)).bfloat16() for piece in pieces], dim=1)


def _is_bfloat16(operand: Any) -> bool:
    return isinstance(operand, torch.Tensor) and operand.dtype == torch.bfloat16


def _wide(operand: Any, number: int) -> Any:
    """Return an operand of bfloat16 in float32, and any other as it is.

    The result is valid until the next product of this thread, which has the same memory for that `number`.
    """
    if not _is_bfloat16(operand):
        return operand
    if operand.numel() > KEPT:
        return operand.float()
    room = _rooms.by_number.get(number)
    if room is None or len(room) < operand.numel():
        with torch.inference_mode(False):  # Training could not write to a tensor made in inference mode.
            room = torch.empty(operand.numel())
        _rooms.by_number[number] = room
    # In the order of the operand's own memory: attention's result has that of its queries, and what follows
    # would copy it otherwise.
    order = sorted(range(operand.dim()), key=lambda axis: -operand.stride(axis))
    stored = operand.permute(order)
    copy = room[: operand.numel()].view(stored.shape).copy_(stored)
    return copy.permute([order.index(axis) for axis in range(operand.dim())])
