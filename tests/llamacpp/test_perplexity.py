"""The figures of divergence are llama-perplexity's own, on the embedded base, for three levels."""

import runpy
from pathlib import Path

import pytest

from pipeline.core.places import PROJECT
from pipeline.llamacpp.tools import Toolchain

BENCHMARK = runpy.run_path(str(PROJECT / "benchmarks/perplexity.py"))
LEVELS = ("Q4_K_M", "Q5_K_M", "Q8_0")
CHUNKS = 4  # of 256 tokens; the second half of each counts


@pytest.mark.exhaustive
def test_three_levels_agree_with_llama_perplexity_within_two_per_cent(
    tools: Toolchain, tmp_path: Path
) -> None:
    f16 = BENCHMARK["packaged"](tmp_path, tools)
    side = BENCHMARK["Side"](tools, tmp_path, ctx_size=256, chunks=CHUNKS, threads=1)
    side.save_reference(f16)
    wrote = BENCHMARK["written"]()
    found = {}
    for level in LEVELS:
        model = BENCHMARK["requantized"](f16, level, tmp_path, tools)
        theirs, before = side.theirs(model), BENCHMARK["written"]()
        ours = side.ours(model, f16)
        assert BENCHMARK["written"]() - before < 10_000  # nothing of vocabulary × tokens is stored
        assert ours["perplexity_tokens"] == CHUNKS * 127
        apart = BENCHMARK["distances"](ours, theirs)
        assert max(apart.values()) <= 0.02, f"{level}: {apart}"
        found[level] = ours
    assert found["Q8_0"]["kld_mean"] < min(found["Q4_K_M"]["kld_mean"], found["Q5_K_M"]["kld_mean"]) / 10
    assert wrote > side.file.stat().st_size > CHUNKS * 127 * 49_152 * 2  # what llama-perplexity needs

    self_compared = side.ours(f16, f16)
    assert self_compared["all_tokens"]["kld_max"] <= 1e-6
    assert self_compared["all_tokens"]["same_top"] == 1.0
