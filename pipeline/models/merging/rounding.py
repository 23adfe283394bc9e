"""A float64 number rounded once to a 16-bit type, to the nearest, ties to even."""

from typing import Any

from pipeline.core.errors import DataError
from pipeline.models.tensors import all_finite

DROPPED = (1 << 29) - 1  # bits of a float64's fraction that a float32 has no room for


def round_once(exact: Any, dtype: Any) -> Any:
    """Float64 numbers as `dtype`, within 0.5 ulp for every result that is at least the type's smallest normal
    number.

    torch goes from float64 over float32, which rounds twice. Here what float32 would drop is first gathered
    in its last bit (rounding to odd; Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE
    Trans. Computers 57(4), 2008), so that the second rounding decides as one from float64 would. `exact` is
    overwritten.
    """
    import torch

    if torch.finfo(dtype).bits == 16:
        bits = exact.view(torch.int64)
        sticky = bits & DROPPED
        bits.bitwise_or_(sticky.add_(DROPPED)).bitwise_and_(~DROPPED)
    return exact.float().to(dtype)


def check_finite(rounded: Any, name: str) -> None:
    """Raise `DataError` if a number of a floating-point tensor is infinite or not a number; `name` is
    said.
    """
    kind = str(rounded.dtype).removeprefix("torch.")
    if rounded.is_floating_point() and not all_finite(rounded):
        raise DataError(
            "Q-MODELS-022",
            f"{name} has values that {kind} can't hold: set convert.type to BF16, or correct the base or "
            "the adapter if it is that already",
        )
