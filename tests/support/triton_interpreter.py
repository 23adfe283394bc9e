"""Triton's interpreter, which runs kernels on a CPU, made to take what compiled kernels take: import this
before Liger, in a process with TRITON_INTERPRET=1.

It leaves a number with a point as Python's own, which has no `.to`, where compiled code has a float32; and it
has no functions of CUDA's libdevice, of which Liger's RMSNorm takes `rsqrt`.
"""

from typing import Any

import numpy as np
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter

_convert = interpreter._implicit_cvt


def _as_compiled(argument: Any) -> Any:
    if isinstance(argument, float):
        return tl.tensor(interpreter.TensorHandle(np.array([argument], np.float32), tl.float32), tl.float32)
    return _convert(argument)


interpreter._implicit_cvt = _as_compiled
# looked up when called, for the interpreter swaps them
libdevice.rsqrt = lambda values: tl.math.rsqrt(values)
libdevice.tanh = lambda values: 2 * tl.sigmoid(2 * values) - 1
