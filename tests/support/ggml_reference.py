"""Random quantized blocks, and what both references make of them: package gguf, llama.cpp's `to_float`."""

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from pipeline.gguf.dequantize import TRAINABLE_TYPES
from pipeline.llamacpp.tools import Toolchain, load_binding

# the first bytes of a block's float16 scales, by ggml's number of the type
SCALES = {
    2: (0,),
    3: (0, 2),
    6: (0,),
    7: (0, 2),
    8: (0,),
    10: (80, 82),
    11: (108,),
    12: (0, 2),
    13: (0, 2),
    14: (208,),
    20: (0,),
    23: (0,),
}
SPECIAL = (
    0x0000,
    0x8000,
    0x0001,
    0x8001,
    0x03FF,
    0x83FF,
    0x0400,
    0x7BFF,
    0xFBFF,
    0x3C00,
    0xBC00,
)  # ±0, ±subnormal, smallest, ±largest, ±1
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


def random_rows(ggml_type: int, rows: int, blocks: int, seed: int = 0) -> Bytes:
    """(rows, blocks · bytes of a block) of the type with ggml's number `ggml_type`: random bytes, whose
    scales are finite float16 of every kind.
    """
    random = np.random.default_rng(seed)
    size = GGML_QUANT_SIZES[GGMLQuantizationType(ggml_type)][1]
    if ggml_type not in SCALES:
        values = random.standard_normal((rows, blocks), np.float32)
        values = {
            0: values,
            1: values.astype(np.float16),
            30: np.ascontiguousarray(values.view(np.uint16)[:, 1::2]),
        }[ggml_type]
        return values.view(np.uint8)
    quantized = random.integers(0, 256, (rows * blocks, size), np.uint8)
    for at in SCALES[ggml_type]:
        bits = random.integers(0, 1 << 16, len(quantized), np.uint16)
        bits[(bits & 0x7C00) == 0x7C00] &= 0x83FF  # infinities and NaN become subnormal
        some = min(len(bits), 4 * len(SPECIAL))
        bits[:some] = random.choice(np.array(SPECIAL, np.uint16), some)
        quantized[:, at : at + 2] = bits[:, None].view(np.uint8)
    return quantized.reshape(rows, -1)


def by_gguf(quantized: Bytes, ggml_type: int) -> Floats:
    """Dequantize `quantized` (rows, bytes) by the package gguf, to float32 (rows, weights)."""
    # as one long row: it goes by 16 rows at a time
    values: Floats = quants.dequantize(
        np.ascontiguousarray(quantized).reshape(1, -1), GGMLQuantizationType(ggml_type)
    )
    return values.reshape(len(quantized), -1)


class Traits(ctypes.Structure):
    """The start of `struct ggml_type_traits` (ggml.h)."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("weights", ctypes.c_int64),
        ("interleave", ctypes.c_int64),
        ("size", ctypes.c_size_t),
        ("quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


def by_llama_cpp(quantized: Bytes, ggml_type: int, tools: Toolchain) -> Floats:
    """Dequantize `quantized` (rows, bytes) by llama.cpp's compiled `to_float`, to float32 (rows, weights)."""
    find = load_binding(
        tools
    ).llama_cpp._lib.ggml_get_type_traits  # in a library that libllama is linked with
    find.argtypes, find.restype = [ctypes.c_int], ctypes.POINTER(Traits)
    traits = find(ggml_type).contents
    quantized = np.ascontiguousarray(quantized)
    values = np.full((len(quantized), quantized.shape[1] // traits.size * traits.weights), np.nan, np.float32)
    traits.to_float(quantized.ctypes.data, values.ctypes.data, values.size)
    return values


def name_of(ggml_type: int) -> str:
    """Return the name that the package gguf gives a type."""
    return GGMLQuantizationType(ggml_type).name


EVERY = pytest.mark.parametrize("ggml_type", TRAINABLE_TYPES, ids=name_of)


def same_bits(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Return True if two tensors are equal byte for byte: -0 is not 0."""
    return (
        found.dtype == wanted.dtype
        and found.shape == wanted.shape
        and torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
    )
