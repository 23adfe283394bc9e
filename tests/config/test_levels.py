"""Levels: the list is llama-quantize's own, and so are those that need an importance matrix."""

import re

import pytest
from make import ended
from qwen2_variants import cut_models

from pipeline.config.ggml_types import LEVELS
from pipeline.config.levels import ModelName
from pipeline.config.params import Params
from pipeline.llamacpp.tools import Toolchain, run_tool

LEFT_OUT = {"F32", "F16", "BF16", "COPY", "Q3_K", "Q4_K", "Q5_K", "Q2_0"}


def test_the_levels_are_those_of_llama_quantize(tools: Toolchain) -> None:
    shown = ended([tools.tool("llama-quantize"), "--help"]).stdout
    names = set(re.findall(r"^ +(?:\d+ +or +)?([A-Z0-9_]+) +: ", shown, re.MULTILINE))
    assert names == LEVELS.keys() | LEFT_OUT
    assert not LEVELS.keys() & LEFT_OUT


def test_llama_quantize_wants_a_matrix_for_exactly_these(tools: Toolchain) -> None:
    source = cut_models(tools) / "tiny-F16.gguf"
    output = {level: run_tool([tools.tool("llama-quantize"), "--dry-run", source, level]) for level in LEVELS}
    refused = {level for level, words in output.items() if "require an imatrix" in words}
    assert refused == {name for name, level in LEVELS.items() if level.needs_imatrix}


@pytest.mark.parametrize(
    ("name", "level", "plain", "says", "reference"),
    [
        ("F16", "F16", "F16", "", "F16"),
        ("base-F16", "F16", "base-F16", "untuned", "F16"),
        ("q4_k_m", "Q4_K_M", "q4_k_m", "", "F16"),
        ("base-Q4_K_M", "Q4_K_M", "base-Q4_K_M", "untuned", "base-F16"),
        ("q4_k_m-imatrix", "Q4_K_M", "q4_k_m", "imatrix", "F16"),
        ("Q4_K_M-IMATRIX", "Q4_K_M", "Q4_K_M", "imatrix", "F16"),
        ("Q4_0-distilled", "Q4_0", "Q4_0", "made_of", "F16"),
        ("Q4_0-imatrix-distilled", "Q4_0", "Q4_0-imatrix", "made_of", "F16"),  # there is none
    ],
)
def test_what_a_name_says(name: str, level: str, plain: str, says: str, reference: str) -> None:
    model = ModelName(name)
    assert (model, model.level, model.plain, model.bare) == (name, level, plain, name.removeprefix("base-"))
    properties = ("untuned", "imatrix", "made_of")
    assert [flag for flag in properties if getattr(model, flag)] == says.split()
    assert model.reference("F16") == reference
    assert ModelName(name.replace("F16", "BF16")).reference("BF16") == reference.replace("F16", "BF16")


@pytest.mark.parametrize(
    ("levels", "deciding", "tokens"),
    [
        (["Q5_K_M", "Q4_K_M"], "Q5_K_M", 0),
        (["base-Q8_0", "q4_0"], "Q4_0", 0),
        (["Q6_K", "q4_k_m-IMATRIX"], "Q6_K", 100_000),
        (["Q6_K-imatrix", "Q4_K_M"], "Q6_K", 100_000),
        (["IQ2_M-imatrix", "Q5_0"], "Q5_0", 100_000),
        (["IQ2_M-imatrix"], "Q4_K_M", 100_000),
    ],
)
def test_what_decides_a_merge_and_a_matrix(levels: list[str], deciding: str, tokens: int) -> None:
    values = {"quantize": {"levels": levels}, "evaluate": {"models": ["F16"]}}
    quantize = Params.model_validate(values).quantize
    assert (quantize.deciding, quantize.imatrix_tokens) == (deciding, tokens)
