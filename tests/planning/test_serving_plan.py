"""`quench config plan --serve`: the arithmetic, computed before a model is made, from files after; what fits,
and exit 6 where nothing does.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import shipping
import tiny
import yaml
from golden import Golden
from hypothesis import given
from hypothesis import strategies as st
from plans import plan_json, run_plan, write_gguf_params, write_params

from pipeline.config.sections import Serve
from pipeline.config.sections.values import ALL_LAYERS
from pipeline.core.errors import ConfigError
from pipeline.core.hardware import Card
from pipeline.gguf.file import kv_cache_bytes
from pipeline.llamacpp.server_command import PROMPT_CACHE_MIB
from pipeline.planning.model.config_file import read_shape
from pipeline.planning.serving import (
    PlannedModel,
    ServingMemory,
    best_that_fits,
    cache_per_token,
    plan_level,
)

EIGHT = ("--recipe", "qwen2.5-7b-8gb", "--vram", "8")


def level(weights: int = 1000, per_token: int | None = 2, *, room: int | None = 5000, **changed: Any) -> Any:
    served = {key: changed.pop(key) for key in ("ctx_size", "parallel", "n_gpu_layers") if key in changed}
    serve = Serve().model_copy(update={"ctx_size": 100, "parallel": 1, "n_gpu_layers": ALL_LAYERS} | served)
    return plan_level(
        PlannedModel("Q4_K_M", weights, per_token, **{"positions": 4096} | changed), serve, room
    )


def test_weights_cache_and_buffers_are_summed() -> None:
    assert ServingMemory(1000, 200).total == 1320  # a tenth on top
    assert ServingMemory(1000, 200, peak=1250).total == 1250
    # a peak below what must be there was not of the entire model
    assert ServingMemory(1000, 200, peak=900).total == 1200
    assert ServingMemory(1000, None).total == 1100
    # the peak is that of a first conversation
    assert ServingMemory(1000, 200, peak=1250, prompt_cache=500).total == 1750


def test_the_longest_context_is_the_last_that_fits() -> None:
    found = level()
    assert found.fits
    assert found.longest == int((5000 / 1.1 - 1000) // 2)
    assert level(ctx_size=found.longest).fits
    assert not level(ctx_size=found.longest + 2).fits
    assert level(parallel=2).longest == found.longest // 2
    assert level(positions=50).longest == 50
    assert level(weights=9000).longest == 0
    # the buffers were measured: 1,500 less 1,000 and 200
    assert level(peak=1500).longest == (5000 - 1000 - 300) // 2
    assert level(per_token=None).longest is None
    assert level(room=None).fits is None
    kept = PROMPT_CACHE_MIB << 20  # beside a model in main memory
    assert level(n_gpu_layers=0, room=kept + 4400).longest == int((4400 / 1.1 - 1000) // 2)
    assert level(n_gpu_layers=0, room=kept + 4400, peak=1500).longest == (4400 - 1000 - 300) // 2


def test_what_is_not_known_to_fit_is_not_said_to() -> None:
    assert level(per_token=None).fits is None  # a KV cache that nobody measured is not 0
    assert level(per_token=None, peak=1500).fits is True  # it is in the peak
    assert level(per_token=None, weights=9000).fits is False  # the weights alone are too large
    assert level(ctx_size=4096, positions=2048, room=10**9).fits is False
    assert level(ctx_size=4096, positions=2048, room=None).fits is False
    assert best_that_fits({"Q4_K_M": level(per_token=None)}) is None


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
        return level(weights, per_token, room=room, ctx_size=tokens, parallel=parallel, positions=1 << 20)

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


@pytest.mark.parametrize(
    ("words", "code"),
    [(EIGHT, 0), ((*EIGHT[:3], "4"), 6), (EIGHT[:2], 0)],
    ids=["a-card", "nothing-fits", "no-card"],
)
def test_what_a_reader_is_shown(tmp_path: Path, words: tuple[str, ...], code: int, snapshot: Any) -> None:
    shown = run_plan("--serve", *words, "--root", tmp_path)
    assert shown.exit_code == code
    assert shown.stdout + shown.stderr == snapshot(extension_class=Golden)


def test_narrow_rows_fall_back_tensor_by_tensor(tmp_path: Path) -> None:
    """The demo's Q4_K_M is 105.5 MB; as if all its tensors were the widest, it was 143 MB and did not fit."""
    found = plan_json("--serve", "--recipe", "demo-small", "--vram", "0.22", "--root", tmp_path)
    assert found["levels"]["Q4_K_M"]["fits"] is True


def test_a_context_that_the_model_does_not_know_is_refused(tmp_path: Path) -> None:
    write_params(tmp_path, "demo-small", serve={"ctx_size": 16_384})
    shown = run_plan("--serve", "--vram", "8", "--root", tmp_path)
    assert shown.exit_code == ConfigError.exit_code
    assert "Q-COMMANDS-007" in shown.stderr


def test_the_card_is_the_machines_and_of_the_demo_main_memory(tmp_path: Path) -> None:
    demo, large = (("--serve", "--recipe", name, "--root", tmp_path) for name in ("demo-small", "qwen3-4b"))
    rtx = Card("NVIDIA RTX 4060", 8 << 30, "cuda")
    assert json.loads(run_plan(*large, "--json", gpu=rtx).stdout)["card"]["name"] == rtx.name
    assert {level["fits"] for level in plan_json(*large)["levels"].values()} == {None}
    found = plan_json(*demo)  # it is served on the CPU
    assert found["card"]["name"] == "main memory"
    assert found["levels"]["F16"]["prompt_cache_bytes"] == PROMPT_CACHE_MIB << 20
    # the tests' llama.cpp is built for the CPU
    assert "LLAMA=auto" in run_plan(*demo, gpu=rtx).stdout
    assert "LLAMA=auto" not in run_plan(*demo, "--vram", "8", gpu=rtx).stdout


def project(root: Path) -> Path:
    made = shipping.write_project(root)
    (made / "params.yaml").write_text(yaml.safe_dump(shipping.params().model_dump(), allow_unicode=True))
    return made


SERVING = {"ctx_size": 4096, "parallel": 1, "n_gpu_layers": 0, "peak_memory_bytes": 3_000_000} | {
    "gpu_memory_bytes": None,
    "load_seconds": 1.0,
}


@pytest.mark.parametrize(
    ("report", "words", "best", "q4"),
    [
        (
            {"serving": SERVING},
            (),
            "Q4_K_M",
            {"buffers_from": "measured", "total_bytes": 3_000_000 + (PROMPT_CACHE_MIB << 20)},
        ),
        # what was measured in main memory is not the card's
        (
            {"serving": SERVING},
            ("--vram", "8"),
            "Q4_K_M",
            {"buffers_from": "assumed", "prompt_cache_bytes": 0},
        ),
        # the gate refuses it
        ({"kld_mean": 3.0}, ("--vram", "8"), "Q5_K_M", {"buffers_from": "assumed"}),
        # of an older file
        ({"serving": SERVING, "bytes": 1}, (), None, {"buffers_from": "assumed"}),
    ],
    ids=["measured", "on-a-card", "refused", "older"],
)
def test_after_it_is_made_files_and_reports_are_taken(
    tmp_path: Path, report: dict[str, Any], words: tuple[str, ...], best: str | None, q4: dict[str, Any]
) -> None:
    root = project(tmp_path)
    shipping.change(root / "reports/eval/Q4_K_M.json", **report)
    found = plan_json("--serve", *words, "--root", root)
    size = (root / "models/gguf/demo-Q4_K_M.gguf").stat().st_size
    expected = q4 | {"weights_bytes": size, "weights_from": "file"}
    assert {key: found["levels"]["Q4_K_M"][key] for key in expected} == expected
    assert found["levels"]["Q5_K_M"]["buffers_from"] == "assumed"
    assert best in (None, found["best"])
    assert found["reason"]


def test_a_level_with_a_matrix_is_as_large_as_without(tmp_path: Path) -> None:
    levels = ["Q4_K_M", "Q4_K_M-imatrix"]
    write_params(
        tmp_path,
        quantize={"levels": levels},
        evaluate={"models": ["F16", *levels]},
    )
    found = plan_json("--serve", "--vram", "8", "--root", tmp_path)["levels"]
    assert found["Q4_K_M-imatrix"]["weights_bytes"] == found["Q4_K_M"]["weights_bytes"]


@pytest.mark.parametrize(
    ("train", "name", "more"), [({}, "adapter", 2 * 40_370_176), ({"tuner": "scales"}, "tuned", 0)]
)
def test_a_base_as_a_gguf_is_served_with_what_was_trained(
    tmp_path: Path, train: dict[str, Any], name: str, more: int
) -> None:
    write_gguf_params(tmp_path, **train)
    words = ("--serve", "--vram", "8", "--root", tmp_path)
    found = plan_json(*words)
    assert found["best"] == name and list(found["levels"]) == [name]
    computed = found["levels"][name]
    assert computed["weights_bytes"] == pytest.approx(4_683_073_536 + more, rel=0.001)
    assert computed["weights_from"] == "computed"
    if name == "adapter":
        base, lora = tmp_path / "models/base/model.gguf", tmp_path / "models/gguf/qwen2.5-7b-lora.gguf"
        for file in (base, lora):
            file.parent.mkdir(parents=True)
        tiny.tiny_gguf(base)
        lora.write_bytes(b"x" * 9)
        made = plan_json(*words)["levels"][name]
        assert (made["weights_bytes"], made["weights_from"]) == (base.stat().st_size + 9, "file")
