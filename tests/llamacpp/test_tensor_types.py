"""Types for single tensors: what can't be is said before, what llama-quantize did not do is said after."""

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType
from qwen2_variants import cut_models

from pipeline.core.errors import ConfigError
from pipeline.gguf.file import check_gguf
from pipeline.llamacpp.converters import Quantizing, quantize_gguf
from pipeline.llamacpp.tools import Llama, Toolchain


@pytest.fixture
def source(tools: Toolchain) -> Path:
    return cut_models(tools) / "tiny-F16.gguf"


def test_the_first_pattern_that_matches_wins(source: Path, tools: Toolchain, tmp_path: Path) -> None:
    quantize_gguf(
        Llama(tools),
        source,
        tmp_path / "x.gguf",
        "Q4_K_M",
        Quantizing(tensor_types={r"blk\.0\.ATTN_V": "q8_0", "attn_v": "F16"}),
    )
    types = {
        name: GGMLQuantizationType(ggml_type).name
        for name, (_, ggml_type) in check_gguf(tmp_path / "x.gguf").tensors.items()
    }
    assert (types["blk.0.attn_v.weight"], types["blk.1.attn_v.weight"], types["blk.0.attn_q.weight"]) == (
        "Q8_0",
        "F16",
        "Q4_K",
    )


@pytest.mark.parametrize(
    ("types", "output"),
    [
        ({"attn_w": "Q8_0"}, "Q-GGUF-012"),
        ({"attn_v": "Q9_9"}, "Q-GGUF-010"),
        ({"attn_v": "IQ2_XS"}, "Q-GGUF-011"),
        ({"attn_(": "Q8_0"}, "Q-GGUF-014"),
        ({"attn_norm": "Q8_0"}, "Q-GGUF-013.*attn_norm asks for Q8_0.*F32"),
        ({"attn": "Q8_0", "attn_v": "Q6_K"}, "Q-GGUF-013.*attn_v asks for Q6_K"),
    ],
)
def test_what_cannot_be_is_an_error_and_publishes_nothing(
    source: Path, types: dict[str, str], output: str, tools: Toolchain, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=output):
        quantize_gguf(Llama(tools), source, tmp_path / "x.gguf", "Q4_K_M", Quantizing(tensor_types=types))
    assert list(tmp_path.iterdir()) == []
