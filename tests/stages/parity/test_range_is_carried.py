"""Adapters over PEFT's range, and scales, are merged and served as trained: every parity check passes."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from conftest import GGUF_STAGES, run_stages

from pipeline.gguf.file import is_made

pytestmark = pytest.mark.slow
MERGED = ("base", "curate", "preprocess", "train", "merge", "convert")
MERGED += ("quantize@Q4_K_M", "quantize@Q5_K_M", "parity")


def failed(root: Path) -> set[str]:
    """The parity checks that failed."""
    checks = json.loads((root / "reports/parity.json").read_text())["checks"]
    return {key for key, check in checks.items() if check["verdict"] == "fail"}


@pytest.mark.parametrize(
    ("train", "alone"),
    [
        (
            {"lora_variants": ["dora"], "layers": "1-", "train_on_prompt": True}
            | {"modules_to_save": ["input_layernorm", "norm"], "learning_rate": 0.01},
            False,
        ),
        (
            {
                "lora_variants": ["rslora", "lora_plus"],
                "rank_pattern": {"down_proj": 6},
                "target_modules": r".*(self_attn|mlp)\.(q|v|up|down)_proj",
            },
            False,
        ),
        ({"lora_variants": ["rslora"], "layers": [1]}, True),
    ],
    ids=["dora", "patterns", "rslora"],
)
def test_a_merge_holds_what_was_trained(
    train: dict[str, Any], alone: bool, tiny_qwen2: Path, tmp_path: Path
) -> None:
    params = tiny.tiny_params(tiny_qwen2)
    params["train"] |= train
    params["merge"]["base"] = "nf4"
    params["parity"]["depth"] = "full" if alone else "standard"
    root = run_stages(tiny.write_project(tmp_path / "project", params), MERGED)
    assert failed(root) == set()
    assert is_made(root / "models/gguf/tiny-lora.gguf") == alone


def test_an_adapter_on_a_gguf_is_served_as_it_was_trained(tiny_gguf_base: Path, tmp_path: Path) -> None:
    params = tiny.gguf_params(tiny_gguf_base)
    params["train"] |= {"lora_variants": ["rslora", "gaussian"], "layers": "1-"}
    root = run_stages(tiny.write_project(tmp_path / "project", params), GGUF_STAGES[:6])
    assert failed(root) == set()


@pytest.mark.parametrize("train", [{"layers": [1]}, {"layers": "1-", "target_modules": r".*\.mlp\.up_proj"}])
def test_scales_of_some_layers_are_served_as_they_were_trained(
    train: dict[str, Any], tiny_gguf_base: Path, tmp_path: Path
) -> None:
    params = tiny.gguf_params(tiny_gguf_base)
    params["train"] |= {"tuner": "scales", "learning_rate": 5.0e-3} | train
    params["evaluate"]["models"] = ["source", "base", "tuned"]
    stages = ("base", "curate", "preprocess", "train", "tuned", "parity")
    root = run_stages(tiny.write_project(tmp_path / "project", params), stages)
    assert failed(root) == set()
