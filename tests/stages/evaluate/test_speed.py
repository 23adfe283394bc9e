"""speed: llama-bench's own runs as median, lowest and highest; a tool that fails is named."""

from pathlib import Path

import pytest
from qwen2_variants import cut_models
from tiny import tiny_params

from pipeline.config.sections import Evaluate
from pipeline.core.errors import ToolError
from pipeline.llamacpp.tools import Toolchain, bench
from pipeline.stages.evaluate.speed import GENERATED, numbers, runs, speed


def test_every_length_and_depth_is_measured(tools: Toolchain) -> None:
    asked = tiny_params(Path("base"))["evaluate"] | {
        "prompt_lengths": [16, 48],
        "generation_depths": [0, 32],
        "repetitions": 3,
    }
    found = speed(cut_models(tools) / "tiny-F16.gguf", Evaluate(**asked), tools)
    prompt, generation = found["speed"]["prompt"], found["speed"]["generation"]
    assert [one["tokens"] for one in prompt] == [16, 48]
    assert [(one["depth"], one["tokens"]) for one in generation] == [(0, GENERATED), (32, GENERATED)]
    assert all(
        0 < one["low"] <= one["median"] <= one["high"] and one["runs"] == 3 for one in prompt + generation
    )
    assert found["prompt_tok_s"] == prompt[1]["median"]
    assert found["prompt_tok_s_spread"] == pytest.approx(
        (prompt[1]["high"] - prompt[1]["low"]) / 2, abs=0.011
    )
    assert found["generation_tok_s"] == generation[0]["median"]


def test_the_median_is_not_moved_by_one_slow_run() -> None:
    assert runs({"samples_ts": [100.0, 10.0, 102.0]}) == {
        "median": 100.0,
        "low": 10.0,
        "high": 102.0,
        "runs": 3,
    }


def test_lengths_are_measured_once() -> None:
    assert numbers([512, 128, 512]) == "512,128"


def test_llama_bench_that_fails_is_a_sentence(tools: Toolchain, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with pytest.raises(ToolError, match="Q-LLAMACPP-019"):
        list(
            bench(
                tools, broken, ("--n-prompt", "8", "--n-gen", "0"), repetitions=1, threads=1, n_gpu_layers=0
            )
        )
