"""What rounding to each of ggml's types costs a tensor as a whole, and the worst weight of a block: the
tables NOISE and WORST_WEIGHT of pipeline/gguf/tensors.py.

    python benchmarks/type_noise.py [--gguf F16.gguf] [--types Q4_K,Q2_K] [--rows 256] [--seeds 1]

By the pinned llama.cpp (ggml_quantize_chunk), of normal, Laplace and Student-t numbers (5 degrees of
freedom), and of the matrices of a GGUF of 16 bits (at most --rows rows each). The RMSE is the largest without
and with random importances (log-normal), the worst weight that without: importances give unimportant weights
up, and one of them was off by 0.88 of its block's largest.
"""

import argparse
import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from pipeline.config.ggml_types import TYPES
from pipeline.gguf.tensors import NOISE, gguf_tensors
from pipeline.llamacpp.tools import find_toolchain
from pipeline.stages.parity.level_weights import block_noise

COLUMNS = 4096
Floats = np.ndarray[Any, np.dtype[np.float32]]


def quantizer() -> Any:
    """ggml's own function: (type, numbers, result, first row, rows, columns, importances) → bytes."""
    library = ctypes.CDLL(str(find_toolchain().bin / "libggml-base.so"))
    pointer = ctypes.c_void_p
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        pointer,
        pointer,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
        pointer,
    ]
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    return library.ggml_quantize_chunk


def rounded(chunk: Any, number: GGMLQuantizationType, values: Floats, importances: Floats | None) -> Floats:
    """`values` (rows, columns) through the type and back."""
    block, size = GGML_QUANT_SIZES[number]
    stored = np.empty((len(values), values.shape[1] // block * size), np.uint8)
    given = None if importances is None else importances.ctypes.data
    chunk(int(number), values.ctypes.data, stored.ctypes.data, 0, len(values), values.shape[1], given)
    return np.asarray(dequantize(stored, number))


def cases(rows: int, seeds: int, file: Path | None) -> Iterator[tuple[str, Floats]]:
    """(name, numbers) of everything that is rounded."""
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        size = (rows, COLUMNS)
        yield "normal", random.normal(size=size).astype(np.float32)
        yield "Laplace", random.laplace(size=size).astype(np.float32)
        yield "t5", random.standard_t(5, size).astype(np.float32)
    if file:
        for name, tensor in gguf_tensors(file)[1].items():
            if tensor.rows > 1 and tensor.columns % 256 == 0:
                yield name, np.ascontiguousarray(tensor.values(0, min(rows, tensor.rows)))


def main() -> None:
    """Print a line a type: the largest RMSE and the largest error of a weight, and where."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--types", default=",".join(NOISE))
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    chunk = quantizer()
    print(f"{'type':8} {'RMSE':>8} {'worst weight':>13}  where")
    for name in asked.types.split(","):
        number = GGMLQuantizationType[name]
        block = GGML_QUANT_SIZES[number][0]
        if block == 1:
            continue
        rmse, worst, where = 0.0, 0.0, ""
        for case, values in cases(asked.rows, asked.seeds, asked.gguf):
            columns = np.exp(np.random.default_rng(1).normal(size=values.shape[1])).astype(np.float32)
            for importances in (None, columns):
                if importances is None and name in TYPES and TYPES[name].needs_imatrix:
                    continue
                after = rounded(chunk, number, values, importances)
                found = block_noise(values.reshape(-1, block), after.reshape(-1, block))
                rmse = max(rmse, float(np.sqrt(found.error.sum() / found.norm.sum())))
                if importances is None and (share := float(found.shares().max())) > worst:
                    worst, where = share, case
        print(f"{name:8} {rmse:8.4f} {worst:13.4f}  {where}", flush=True)


if __name__ == "__main__":
    main()
