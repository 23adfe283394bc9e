"""Bytes of a level before it is made: llama-quantize's own sums, and files as they were published."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from make import ended
from plans import QWEN_7B, SMOLLM2, published
from shaped_gguf import VOCABULARY, mixture, shaped, written

from pipeline.config.ggml_types import LEVELS, TYPES
from pipeline.llamacpp.tools import Toolchain
from pipeline.planning.model.level_bytes import level_bytes, tensor_type
from pipeline.planning.model.shape import Shape

# without a matrix llama-quantize gives IQ3_XXS, which is never made without one, other types; it can't pack
# rows of 64 weights as Q1_0
COMPARED = LEVELS.keys() - {"IQ3_XXS", "Q1_0"}
MIXTRAL = published("mixtral-8x7b-v0.1")


@pytest.mark.parametrize(
    ("shape", "level", "measured"),
    [
        (SMOLLM2, "F16", 270_886_816),
        (SMOLLM2, "Q4_K_M", 105_455_008),
        (SMOLLM2, "Q5_K_M", 112_104_352),
        (QWEN_7B, "Q4_K_M", 4_683_073_536),
        (QWEN_7B, "Q5_K_M", 5_444_831_232),
    ],
)
def test_files_are_as_large_as_computed(shape: Shape, level: str, measured: int) -> None:
    """Rows of 576 weights fall back, those of 1,536 don't."""
    assert level_bytes(shape, level) == pytest.approx(measured, rel=0.001)


def test_types_have_ggmls_blocks() -> None:
    import gguf

    for name, kind in TYPES.items():
        number = gguf.GGMLQuantizationType[name]
        assert (number, gguf.GGML_QUANT_SIZES[number]) == (kind.number, (kind.weights, kind.bytes))


@pytest.mark.parametrize(
    "shape",
    [
        shaped(256, 512, tied=True, kv_heads=1),
        shaped(256, 320, tied=False, kv_heads=2),
        shaped(64, 256, True, 4),
        mixture(256, 256, 4),
        mixture(256, 256, 8),
    ],
)
def test_every_level_is_as_llama_quantize_sums_it_up(tmp_path: Path, tools: Toolchain, shape: Shape) -> None:
    """With `--dry-run` it chooses the types and writes nothing."""
    source = written(tmp_path / "x.gguf", shape)
    # llama-quantize counts a mixture's tensors of the lowest levels otherwise: two in a hundred of the bytes
    low = ("IQ1_", "IQ2_") if shape.routing else ()
    for level in sorted(level for level in COMPARED if not level.startswith(low)):
        done = ended([tools.tool("llama-quantize"), "--dry-run", source, level])
        found = re.search(r"quant size += +([\d.]+) MiB", done.stdout + done.stderr)
        assert found, level
        computed = (level_bytes(shape, level) - 36 * VOCABULARY) / 2**20
        assert computed == pytest.approx(float(found[1]), abs=0.006), level


def test_a_matrix_changes_some_types() -> None:
    shape = shaped(256, 512, tied=True, kv_heads=1)
    assert tensor_type(shape, "Q4_0", "ffn_down", 512) == "Q4_0"
    assert tensor_type(shape, "q4_0-imatrix", "ffn_down", 512) == "Q4_1"
    assert tensor_type(shape, "IQ4_XS", "ffn_down", 512) == "Q5_K"
    assert tensor_type(shape, "IQ4_XS-imatrix", "ffn_down", 512) == "IQ4_XS"
    assert tensor_type(shape, "IQ3_XXS-imatrix", "attn_v", 256) == "Q4_K"


SENSITIVE = {*range(4), 6, 9, 12, 15, 18, 21, 24, 27, *range(28, 32)}


@pytest.mark.parametrize(
    ("level", "tensor", "ggml_type", "layers"),
    [
        ("Q4_K_M", "attn_v", "Q6_K", SENSITIVE),
        ("Q4_K_S", "attn_v", "Q5_K", range(4)),
        ("Q3_K_M", "attn_v", "Q5_K", range(2)),
        ("Q3_K_M", "ffn_down", "Q5_K", range(2)),
        ("IQ3_M", "ffn_down", "Q4_K", range(4)),
        ("IQ3_XS", "ffn_up", "IQ3_XXS", range(4, 28)),
        ("IQ4_XS", "attn_v", "Q5_K", range(32)),
        ("IQ3_M", "ffn_down_exps", "Q4_K", SENSITIVE),
    ],
)
def test_some_layers_have_another_type(
    level: str, tensor: str, ggml_type: str, layers: Iterable[int]
) -> None:
    """Of 32 layers with four heads to a key: the first eighth, the last one and every third between."""
    shape = MIXTRAL if tensor.endswith("_exps") else published("llama-3.1-8b")
    types = [tensor_type(shape, level, tensor, 4096, layer) for layer in range(shape.layers)]
    assert {layer for layer, name in enumerate(types) if name == ggml_type} == {*layers}


@pytest.mark.parametrize(
    ("shape", "level", "tensor", "columns", "ggml_type"),
    [
        (SMOLLM2, "bf16", "attn_q", 576, "BF16"),
        (SMOLLM2, "F32", "attn_q", 576, "F32"),
        (SMOLLM2, "Q4_K_M", "token_embd", 576, "Q8_0"),  # which is the output too, and no multiple of 256
        (SMOLLM2, "Q4_K_M", "token_embd", 512, "Q6_K"),
        (SMOLLM2, "Q4_K_M", "attn_q", 576, "Q5_0"),
        (SMOLLM2, "Q4_K_M", "attn_q", 577, "F16"),
        (QWEN_7B, "Q4_K_M", "token_embd", 576, "Q5_0"),
        (MIXTRAL, "Q4_K_M", "ffn_gate_inp_shexp", 4096, "F32"),
        (MIXTRAL, "MXFP4_MOE", "ffn_up_exps", 4096, "MXFP4"),
        (MIXTRAL, "MXFP4_MOE", "attn_q", 4096, "Q8_0"),
        (MIXTRAL, "Q4_K_M", "attn_k", 4096, "Q8_0"),
        (MIXTRAL, "Q4_K_M", "attn_v", 4096, "Q8_0"),
        (MIXTRAL, "Q4_K_M", "attn_output", 4096, "Q5_K"),
        (MIXTRAL, "Q6_K", "attn_output", 4096, "Q6_K"),
        (MIXTRAL, "IQ2_S", "attn_output", 4096, "IQ3_S"),
        (MIXTRAL, "IQ3_M", "ffn_down_exps", 4096, "Q4_K"),
        (MIXTRAL, "Q2_K", "ffn_down_exps", 4096, "Q3_K"),
        (published("qwen1.5-moe-a2.7b-chat"), "Q4_K_M", "ffn_down_shexp", 5632, "Q6_K"),
        (QWEN_7B, "Q2_K", "attn_v", 3584, "Q4_K"),
        (published("llama-3.2-3b"), "Q2_K", "attn_v", 3072, "Q3_K"),  # three heads to a key
    ],
)
def test_a_tensor_has_the_type_that_llama_quantize_gives_it(
    shape: Shape, level: str, tensor: str, columns: int, ggml_type: str
) -> None:
    assert tensor_type(shape, level, tensor, columns) == ggml_type
