"""Levels: the list is llama-quantize's own, and so are those that need an importance matrix."""

import re
import subprocess

import pytest
from qwen2_variants import cut_models

from pipeline.config.levels import LEVELS, NEEDS_IMATRIX, TYPES_TO_QUANTIZE, level_problem, split_level
from pipeline.llamacpp.tools import Toolchain, run_tool

LEFT_OUT = {"F32", "F16", "BF16", "COPY", "Q3_K", "Q4_K", "Q5_K", "Q2_0"}


def test_the_levels_are_those_of_llama_quantize(tools: Toolchain) -> None:
    shown = subprocess.run(
        [tools.tool("llama-quantize"), "--help"], capture_output=True, text=True, check=False
    ).stdout
    names = set(re.findall(r"^ +(?:\d+ +or +)?([A-Z0-9_]+) +: ", shown, re.MULTILINE))
    assert names == LEVELS | LEFT_OUT
    assert not LEVELS & LEFT_OUT


def test_llama_quantize_wants_a_matrix_for_exactly_these(tools: Toolchain) -> None:
    source = cut_models(tools) / "tiny-F16.gguf"
    output = {level: run_tool([tools.tool("llama-quantize"), "--dry-run", source, level]) for level in LEVELS}
    assert {level for level, words in output.items() if "will require an imatrix" in words} == NEEDS_IMATRIX


def test_types_are_those_of_the_gguf_package() -> None:
    from gguf import GGMLQuantizationType

    assert {kind.name for kind in GGMLQuantizationType} >= TYPES_TO_QUANTIZE


@pytest.mark.parametrize(
    ("spelled", "level", "matrix", "problem"),
    [
        ("Q4_K_M", "Q4_K_M", False, None),
        ("q4_k_m-imatrix", "Q4_K_M", True, None),
        ("Q4_K_M-IMATRIX", "Q4_K_M", True, None),
        ("iq2_m-imatrix", "IQ2_M", True, None),
        (
            "IQ2_M",
            "IQ2_M",
            False,
            "level IQ2_M can't be made without an importance matrix: write IQ2_M-imatrix and set "
            "imatrix.tokens",
        ),
        ("Q9_Z", "Q9_Z", False, "unknown level Q9_Z: llama.cpp has "),
        ("F16", "F16", False, "unknown level F16"),
    ],
)
def test_spelling(spelled: str, level: str, matrix: bool, problem: str | None) -> None:
    assert split_level(spelled) == (level, matrix)
    output = level_problem(spelled)
    assert output is None if problem is None else output is not None and output.startswith(problem)
