"""`quench plan --serve`: the arithmetic, computed before a model is made, from files after; what fits, and
exit 6 where nothing does.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import shipping
import tiny
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.config.params import load_params
from pipeline.core.errors import ConfigError
from pipeline.core.places import PROJECT
from pipeline.gguf.file import kv_cache_bytes
from pipeline.llamacpp.server_command import PROMPT_CACHE_MIB
from pipeline.planning.card import Card
from pipeline.planning.published import published_shape
from pipeline.planning.serving import (
    GB,
    ServingMemory,
    best_that_fits,
    cache_per_token,
    plan_level,
    prompt_cache,
)
from pipeline.planning.shape import read_shape

EIGHT = ("--recipe", "qwen2.5-7b-8gb", "--vram", "8")


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.commands.plan.first_gpu", lambda: None)


def plan(*words: str | Path) -> Any:
    return CliRunner().invoke(app, ["plan", "--serve", *map(str, words)])


def level(weights: int = 1000, per_token: int | None = 2, *, room: int | None = 5000, **changed: Any) -> Any:
    asked = {"context": 100, "parallel": 1, "positions": 4096} | changed
    return plan_level("Q4_K_M", weights, per_token, room=room, **asked)


def test_weights_cache_and_buffers_are_summed() -> None:
    assert ServingMemory(1000, 200).total == 1320  # a tenth on top
    assert ServingMemory(1000, 200, peak=1250).total == 1250
    # a peak below what must be there was not of the entire model
    assert ServingMemory(1000, 200, peak=900).total == 1200
    assert ServingMemory(1000, None).total == 1100
    # the peak is that of a first conversation
    assert ServingMemory(1000, 200, peak=1250, prompt_cache=500).total == 1750


def test_the_sum_says_what_it_does_not_know() -> None:
    def words(kv_cache: int | None, peak: int | None = None, kept: int = 0) -> str:
        return str(ServingMemory(GB, kv_cache, 4096, peak, kept))

    assert words(GB // 2) == "1.00 GB weights + 0.50 GB KV cache of 4,096 tokens + 10 % = 1.65 GB"
    assert words(GB // 2, 2 * GB, GB // 2).endswith(
        " + 0.50 GB buffers (measured) + 0.50 GB prompt cache = 2.50 GB"
    )
    assert words(None) == "1.00 GB weights + KV cache not measured + 10 % = at least 1.10 GB"
    assert (
        words(None, 2 * GB)
        == "1.00 GB weights + 1.00 GB KV cache of 4,096 tokens and buffers (measured) = 2.00 GB"
    )


def test_the_longest_context_is_the_last_that_fits() -> None:
    found = level()
    assert found.fits
    assert found.longest == int((5000 / 1.1 - 1000) // 2)
    assert level(context=found.longest).fits
    assert not level(context=found.longest + 2).fits
    assert level(parallel=2).longest == found.longest // 2
    assert level(positions=50).longest == 50
    assert level(weights=9000).longest == 0
    # the buffers were measured: 1,500 less 1,000 and 200
    assert level(peak=1500).longest == (5000 - 1000 - 300) // 2
    assert level(per_token=None).longest is None
    assert level(room=None).fits is None
    assert level(kept=600).longest == int((4400 / 1.1 - 1000) // 2)
    assert level(kept=600, peak=1500).longest == (4400 - 1000 - 300) // 2


def test_what_is_not_known_to_fit_is_not_said_to() -> None:
    assert level(per_token=None).fits is None  # a KV cache that nobody measured is not 0
    assert level(per_token=None, peak=1500).fits is True  # it is in the peak
    assert level(per_token=None, weights=9000).fits is False  # the weights alone are too large
    assert level(context=4096, positions=2048, room=10**9).fits is False
    assert level(context=4096, positions=2048, room=None).fits is False
    assert best_that_fits({"Q4_K_M": level(per_token=None)}) is None


def test_conversations_are_kept_in_main_memory() -> None:
    serve = shipping.params().serve
    assert prompt_cache(serve.model_copy(update={"n_gpu_layers": 0})) == PROMPT_CACHE_MIB << 20
    assert prompt_cache(serve.model_copy(update={"n_gpu_layers": 99})) == 0


@given(
    st.integers(1, 10**11),
    st.integers(1, 10**6),
    st.integers(16, 10**5),
    st.integers(1, 8),
    st.integers(1, 10**12),
)
def test_what_is_called_the_longest_fits_and_nothing_much_longer_does(
    weights: int, per_token: int, context: int, parallel: int, room: int
) -> None:
    def at(tokens: int) -> Any:
        return plan_level(
            "L", weights, per_token, context=tokens, parallel=parallel, positions=1 << 20, room=room
        )

    found = at(context)
    assert found.fits == (found.memory.total <= room)
    assert found.longest is not None
    if found.longest:
        assert at(found.longest).memory.total <= room + 1  # half a byte may be rounded up
    if found.longest < 1 << 20:
        assert at(found.longest + 1).memory.total > room - 1


def test_the_cache_of_a_config_is_that_of_its_gguf(tmp_path: Path) -> None:
    """The tiny GGUF's own header says the same: one layer, four heads, 32 wide."""
    config = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": 1,
        "vocab_size": 261,
    }
    assert (
        cache_per_token(read_shape(config)) == kv_cache_bytes(tiny.tiny_gguf(tmp_path / "x.gguf"), 1) == 128
    )


def test_qwen_7b_is_what_its_header_says() -> None:
    shape = published_shape("Qwen/Qwen2.5-7B-Instruct")
    assert shape
    assert cache_per_token(shape) == 28 * 4 * (128 + 128) * 2  # 57,344 bytes; 0.235 GB at 4,096 tokens


def test_the_best_is_the_one_with_the_most_bits_that_fits() -> None:
    plans = {
        name: plan_level(name, size, 1, context=1, parallel=1, positions=9, room=250)
        for name, size in (("A", 100), ("B", 200), ("C", 900))
    }
    assert best_that_fits(plans) == "B"
    assert best_that_fits({"C": plans["C"]}) is None


def test_before_a_model_is_made_it_is_computed(tmp_path: Path) -> None:
    shown = plan(*EIGHT, "--root", tmp_path)
    assert shown.exit_code == 0
    words = " ".join(shown.stdout.split())
    assert "served with 4,096 tokens on a card of 8 GB level" in words
    assert "Q4_K_M 4.361 * 0.219 0.458 * 5.038" in words
    assert "Q5_K_M has the most bits of what fits; how good it is, only `snakemake` measures." in words
    assert "5.07 GB weights + 0.22 GB KV cache of 4,096 tokens + 10 % = 5.82 GB" in words
    assert "1 GB of memory is 2³⁰ bytes" in words
    found = json.loads(plan(*EIGHT, "--json", "--root", tmp_path).stdout)
    assert found["best"] == "Q5_K_M"
    assert found["levels"]["F16"]["fits"] is False
    assert found["levels"]["Q4_K_M"]["weights_from"] == "computed"


def test_where_nothing_fits_it_exits_with_6_and_says_what_would(tmp_path: Path) -> None:
    shown = plan("--recipe", "qwen2.5-7b-8gb", "--vram", "4", "--root", tmp_path)
    assert shown.exit_code == 6
    assert "Q-COMMANDS-008: no level fits a card of 4 GB: Q4_K_M, the smallest, needs 5.04 GB" in shown.stderr
    barely = plan("--recipe", "qwen2.5-7b-8gb", "--vram", "4.9", "--root", tmp_path)
    assert barely.exit_code == 6
    assert "serve at most 1,7" in barely.stderr


def test_narrow_rows_fall_back_tensor_by_tensor(tmp_path: Path) -> None:
    """The demo's Q4_K_M is 105.5 MB; as if all its tensors were the widest, it was 143 MB and did not fit."""
    shown = plan("--recipe", "demo-small", "--vram", "0.22", "--json", "--root", tmp_path)
    assert shown.exit_code == 0
    levels = json.loads(shown.stdout)["levels"]
    assert levels["Q4_K_M"]["fits"] is True
    assert levels["Q5_K_M"]["weights_bytes"] == pytest.approx(112_104_352, rel=0.001)


def test_a_context_that_the_model_does_not_know_is_refused(tmp_path: Path) -> None:
    params = load_params(PROJECT / "recipes" / "demo-small.yaml").model_dump(mode="json")
    params["serve"]["ctx_size"] = 16_384
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    shown = plan("--vram", "8", "--root", tmp_path)
    assert shown.exit_code == ConfigError.exit_code
    assert "Q-COMMANDS-007: serve.ctx_size is 16,384 and the model has 8,192 positions" in shown.stderr


def test_without_a_card_nothing_is_said_to_fit(tmp_path: Path) -> None:
    shown = plan("--recipe", "qwen2.5-7b-8gb", "--root", tmp_path)
    assert shown.exit_code == 0
    assert "Whether a level fits is not measured" in shown.stdout
    shown = plan("--recipe", "demo-small", "--root", tmp_path)  # it is served on the CPU
    assert "main memory" in shown.stdout
    assert "0.50 GB prompt cache" in shown.stdout


def test_the_detected_card_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.commands.plan.first_gpu", lambda: Card("NVIDIA RTX 4060", 8 << 30, "cuda"))
    assert "NVIDIA RTX 4060 of 8.00 GB" in plan("--recipe", "qwen2.5-7b-8gb", "--root", tmp_path).stdout
    shown = plan("--recipe", "demo-small", "--root", tmp_path).stdout
    assert "LLAMA=auto" in shown  # the tests' llama.cpp is built for the CPU
    assert "LLAMA=auto" not in plan("--recipe", "demo-small", "--vram", "8", "--root", tmp_path).stdout


def project(root: Path) -> Path:
    made = shipping.write_project(root)
    (made / "params.yaml").write_text(yaml.safe_dump(shipping.params().model_dump(), allow_unicode=True))
    return made


def test_after_it_is_made_files_and_reports_are_taken(tmp_path: Path) -> None:
    root = project(tmp_path)
    file = root / "models/gguf/demo-Q4_K_M.gguf"
    serving = {
        "ctx_size": 4096,
        "parallel": 1,
        "n_gpu_layers": 0,
        "peak_memory_bytes": 3_000_000,
        "gpu_memory_bytes": None,
        "load_seconds": 1.0,
    }
    shipping.change(root / "reports/eval/Q4_K_M.json", serving=serving)
    found = json.loads(plan("--json", "--root", root).stdout)
    q4 = found["levels"]["Q4_K_M"]
    assert q4["weights_bytes"] == file.stat().st_size
    assert (q4["weights_from"], q4["buffers_from"]) == ("file", "measured")
    assert q4["total_bytes"] == 3_000_000 + (PROMPT_CACHE_MIB << 20)
    assert found["levels"]["Q5_K_M"]["buffers_from"] == "assumed"
    assert found["best"] == "Q4_K_M"
    assert found["reason"].startswith("Of 3 tuned models, Q4_K_M is the smallest that fits in ")


def test_what_was_measured_in_main_memory_is_not_the_cards(tmp_path: Path) -> None:
    root = project(tmp_path)
    serving = {
        "ctx_size": 4096,
        "parallel": 1,
        "n_gpu_layers": 0,
        "peak_memory_bytes": 3_000_000,
        "gpu_memory_bytes": None,
    }
    shipping.change(root / "reports/eval/Q4_K_M.json", serving=serving)
    found = json.loads(plan("--json", "--vram", "8", "--root", root).stdout)
    q4 = found["levels"]["Q4_K_M"]
    assert (q4["buffers_from"], q4["prompt_cache_bytes"]) == ("assumed", 0)
    assert found["reason"].startswith("Of 3 tuned models, Q4_K_M is the smallest that fits in 8 GB")


def test_a_level_that_the_gate_refuses_is_not_the_best(tmp_path: Path) -> None:
    root = project(tmp_path)
    shipping.change(root / "reports/eval/Q4_K_M.json", kld_mean=3.0)
    found = json.loads(plan("--json", "--vram", "8", "--root", root).stdout)
    assert found["best"] == "Q5_K_M"
    assert "The gate refuses Q4_K_M" in plan("--vram", "8", "--root", root).stdout


def test_a_report_of_an_older_file_is_not_believed(tmp_path: Path) -> None:
    root = project(tmp_path)
    serving = {"ctx_size": 4096, "parallel": 1, "n_gpu_layers": 0, "peak_memory_bytes": 3_000_000}
    shipping.change(root / "reports/eval/Q4_K_M.json", serving=serving, bytes=1)
    assert json.loads(plan("--json", "--root", root).stdout)["levels"]["Q4_K_M"]["buffers_from"] == "assumed"


def test_a_level_with_a_matrix_is_as_large_as_without(tmp_path: Path) -> None:
    params = load_params(PROJECT / "recipes" / "qwen2.5-7b-8gb.yaml").model_dump(mode="json")
    params["quantize"]["levels"] = ["Q4_K_M", "Q4_K_M-imatrix"]
    params["imatrix"]["tokens"] = 1000
    params["evaluate"]["models"] = ["F16", "Q4_K_M", "Q4_K_M-imatrix"]
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    levels = json.loads(plan("--vram", "8", "--json", "--root", tmp_path).stdout)["levels"]
    assert levels["Q4_K_M-imatrix"]["weights_bytes"] == levels["Q4_K_M"]["weights_bytes"]


def test_a_base_with_its_adapter_is_served_as_the_two_files(tmp_path: Path) -> None:
    params = load_params(PROJECT / "recipes" / "qwen2.5-7b-8gb.yaml").model_dump(mode="json")
    params["base"] |= {
        "model": "Qwen/Qwen2.5-7B-Instruct-GGUF",
        "file": "qwen2.5-7b-instruct-q4_k_m.gguf",
        "quantization": "gguf",
    }
    params["evaluate"]["models"] = ["base", "adapter"]
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    found = json.loads(plan("--vram", "8", "--json", "--root", tmp_path).stdout)
    assert found["best"] == "adapter" and list(found["levels"]) == ["adapter"]
    computed = found["levels"]["adapter"]
    assert (
        computed["weights_bytes"] == pytest.approx(4_683_073_536 + 2 * 40_370_176, rel=0.001)
        and computed["weights_from"] == "computed"
    )
    for folder, name, data in (
        ("base", "model.gguf", tiny.tiny_gguf(tmp_path / "x.gguf").read_bytes()),
        ("gguf", "qwen2.5-7b-lora.gguf", b"x" * 9),
    ):
        (tmp_path / "models" / folder).mkdir(parents=True)
        (tmp_path / "models" / folder / name).write_bytes(data)
    made = json.loads(plan("--vram", "8", "--json", "--root", tmp_path).stdout)["levels"]["adapter"]
    assert (made["weights_bytes"], made["weights_from"]) == ((tmp_path / "x.gguf").stat().st_size + 9, "file")


def test_a_tuned_file_is_served_as_one_of_its_base_size(tmp_path: Path) -> None:
    params = load_params(PROJECT / "recipes" / "qwen2.5-7b-8gb.yaml").model_dump(mode="json")
    params["base"] |= {
        "model": "Qwen/Qwen2.5-7B-Instruct-GGUF",
        "file": "qwen2.5-7b-instruct-q4_k_m.gguf",
        "quantization": "gguf",
    }
    params["train"]["tuner"] = "scales"
    params["evaluate"]["models"] = ["base", "tuned"]
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    found = json.loads(plan("--vram", "8", "--json", "--root", tmp_path).stdout)
    assert found["best"] == "tuned" and list(found["levels"]) == ["tuned"]
    assert found["levels"]["tuned"]["weights_bytes"] == pytest.approx(4_683_073_536, rel=0.001)
