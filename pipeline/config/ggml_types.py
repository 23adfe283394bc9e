"""Properties of each ggml type and of each of llama.cpp's quantization levels, a row each."""

from typing import NamedTuple


class GgmlType(NamedTuple):
    """A ggml type: a block of `weights` weights is stored in `bytes` bytes (ggml/src/ggml-common.h).

    The package gguf has the same in `GGML_QUANT_SIZES`, but imports NumPy, and a plan starts without NumPy.

    `number` is ggml's (`enum ggml_type`). A row that can't be divided into blocks gets the type `fallback`
    (src/llama-quant.cpp, `tensor_type_fallback`). `scales` are the first bytes of a block's float16 scale
    and, if it has one, minimum (the structs block_*). `scratch` is the memory for each weight, in addition to
    its quantized and its dequantized form, while `pipeline.gguf.dequantize` works on it. It is in bytes,
    rounded up from the peak of a process (measured: 4.1 to 7.5, the rare types 13.5 to 17.3); None for a type
    that can't be trained on. With `kernel`, `pipeline.gguf.kernels` dequantizes it on a GPU, which needs no
    such memory. With `needs_imatrix`, llama-quantize makes it only with an importance matrix
    (`tensor_requires_imatrix` there).

    `noise` is the relative RMSE of the type, the largest of: 256 × 4,096 normal, Laplace and Student-t (5)
    numbers, and tensors of layers 0, 12 and 29 of SmolLM2-135M, each without and with random importances
    (log-normal); quantized by the pinned llama.cpp (ggml_quantize_chunk), measured once on 2026-11-20. Only
    normal numbers would give some 20 % less. `worst` is the largest error of a weight as a share of the
    largest weight in its block, without importances: 128 × 4,096 of the same numbers, measured once on
    2026-11-25. Types with evenly spaced steps can't exceed half a step: 1/8 of it at Q4_0, whose steps reach
    further on one side. Both are None if they were not measured. `tests/stages/parity/test_parity_weights.py`
    checks them on normal numbers for the types that the package gguf can make.
    """

    number: int
    weights: int
    bytes: int
    noise: float | None = None
    worst: float | None = None
    fallback: str = "F16"
    scales: tuple[int, ...] = ()
    scratch: int | None = None
    kernel: bool = False
    needs_imatrix: bool = False


class Level(NamedTuple):
    """A quantization level, which gives most tensors the type `base`.

    `kld` is the published mean KL divergence from F16 in nats (see `pipeline.metrics.level_limits`), None if
    none is published.
    """

    base: str
    kld: float | None = None
    needs_imatrix: bool = False


# All types that a tensor can be given by name.
TYPES = {
    "F32": GgmlType(0, 1, 4, 1e-7, 1e-7, scratch=0),
    "F16": GgmlType(1, 1, 2, 0.0005, 0.0005, scratch=0),
    "BF16": GgmlType(30, 1, 2, 0.003, 0.0039, scratch=0),
    "Q1_0": GgmlType(41, 128, 18),
    "Q4_0": GgmlType(2, 32, 18, 0.1127, 0.1251, scales=(0,), scratch=8),
    "Q4_1": GgmlType(3, 32, 20, 0.0919, 0.0673, scales=(0, 2), scratch=8),
    "Q5_0": GgmlType(6, 32, 22, 0.0562, 0.0626, scales=(0,), scratch=8),
    "Q5_1": GgmlType(7, 32, 24, 0.0527, 0.0329, scales=(0, 2), scratch=8),
    "Q8_0": GgmlType(8, 32, 34, 0.0068, 0.0043, scales=(0,), scratch=8, kernel=True),
    "Q2_K": GgmlType(10, 256, 84, 0.344, 0.3786, fallback="Q4_0", scales=(80, 82), scratch=18),
    "Q3_K": GgmlType(11, 256, 110, 0.1894, 0.2239, fallback="Q4_0", scales=(108,), scratch=18),
    "Q4_K": GgmlType(12, 256, 144, 0.0915, 0.1009, fallback="Q5_0", scales=(0, 2), scratch=8, kernel=True),
    "Q5_K": GgmlType(13, 256, 176, 0.0448, 0.0488, fallback="Q5_1", scales=(0, 2), scratch=8, kernel=True),
    "Q6_K": GgmlType(14, 256, 210, 0.0243, 0.0162, fallback="Q8_0", scales=(208,), scratch=8, kernel=True),
    "IQ1_S": GgmlType(19, 256, 50, 0.61, fallback="IQ4_NL", needs_imatrix=True),
    "IQ1_M": GgmlType(29, 256, 56, 0.5688, fallback="IQ4_NL", needs_imatrix=True),
    "IQ2_XXS": GgmlType(16, 256, 66, 0.4551, fallback="IQ4_NL", needs_imatrix=True),
    "IQ2_XS": GgmlType(17, 256, 74, 0.3794, fallback="IQ4_NL", needs_imatrix=True),
    "IQ2_S": GgmlType(22, 256, 82, 0.3342, fallback="IQ4_NL", needs_imatrix=True),
    "IQ3_XXS": GgmlType(18, 256, 98, 0.2416, fallback="IQ4_NL", needs_imatrix=True),
    "IQ3_S": GgmlType(21, 256, 110, 0.1963, 0.4011, fallback="IQ4_NL"),
    "IQ4_NL": GgmlType(20, 32, 18, 0.0948, 0.1129, fallback="IQ4_NL", scales=(0,), scratch=18),
    "IQ4_XS": GgmlType(23, 256, 136, 0.0955, 0.1099, fallback="IQ4_NL", scales=(0,), scratch=18),
    "MXFP4": GgmlType(39, 32, 17, 0.1268, 0.25),
    "TQ1_0": GgmlType(34, 256, 54, 0.8541, 0.5003, fallback="Q4_0"),
    "TQ2_0": GgmlType(35, 256, 66, 0.8541, 0.5003, fallback="Q4_0"),
}
# From tools/quantize/quantize.cpp, QUANT_OPTIONS. Left out are F32, F16, BF16 and COPY, which quantize
# nothing; the aliases Q3_K, Q4_K and Q5_K of the _M levels, because a file's name should match its header;
# and Q2_0, which the gguf package can't read.
LEVELS = {
    "Q1_0": Level("Q1_0"),
    "TQ1_0": Level("TQ1_0"),
    "TQ2_0": Level("TQ2_0"),
    "IQ1_S": Level("IQ1_S", 2.25455, needs_imatrix=True),
    "IQ1_M": Level("IQ1_M", 1.39308, needs_imatrix=True),
    "IQ2_XXS": Level("IQ2_XXS", 0.81202, needs_imatrix=True),
    "IQ2_XS": Level("IQ2_XS", 0.54629, needs_imatrix=True),
    "IQ2_S": Level("IQ2_XS", 0.4392, needs_imatrix=True),
    "IQ2_M": Level("IQ2_S", 0.32599, needs_imatrix=True),
    "IQ3_XXS": Level("IQ3_XXS", 0.18363, needs_imatrix=True),
    "IQ3_XS": Level("IQ3_S", 0.13869, needs_imatrix=True),
    "IQ3_S": Level("IQ3_S", 0.11128),
    "IQ3_M": Level("IQ3_S", 0.10253),
    "Q2_K_S": Level("Q2_K", 0.40336, needs_imatrix=True),
    "Q2_K": Level("Q2_K", 0.44513),
    "Q3_K_S": Level("Q3_K", 0.22822),
    "Q3_K_M": Level("Q3_K", 0.10191),
    "Q3_K_L": Level("Q3_K", 0.08718),
    "IQ4_XS": Level("IQ4_XS", 0.03633),
    "IQ4_NL": Level("IQ4_NL", 0.03574),
    "MXFP4_MOE": Level("Q8_0"),
    "Q4_0": Level("Q4_0", 0.07194),
    "Q4_1": Level("Q4_1", 0.07168),
    "Q4_K_S": Level("Q4_K", 0.04314),
    "Q4_K_M": Level("Q4_K", 0.03127),
    "Q5_0": Level("Q5_0", 0.02224),
    "Q5_1": Level("Q5_1", 0.01805),
    "Q5_K_S": Level("Q5_K", 0.0166),
    "Q5_K_M": Level("Q5_K", 0.01076),
    "Q6_K": Level("Q6_K", 0.00545),
    "Q8_0": Level("Q8_0", 0.00136),
}
# Levels that store linears with float16 scales.
WITH_SCALES = frozenset(
    name for name, level in LEVELS.items() if TYPES[level.base].scales and name != "MXFP4_MOE"
)
