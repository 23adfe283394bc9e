"""Families trained on and inside their GGUF, from the file to parity: an adapter, and the file's scales."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
from conftest import run_stages
from families import FUSED, ON_GGUF, STRETCHED, family
from wrappers import with_drafts

from pipeline.llamacpp.converters import HeaderFields, to_gguf
from pipeline.llamacpp.tools import Toolchain

# A Mistral's file is a Llama's; the projects of other tests are on Qwens.
ELSEWHERE = ("mistral", "qwen2", "qwen3")
PREPARED = ("base", "curate", "preprocess")
NAME = "tiny"  # llama.cpp takes a file for a Phi-3 by its name, and asks for tokens of its vocabulary then


def checks_of(root: Path, params: dict[str, Any], stages: tuple[str, ...]) -> dict[str, Any]:
    """Run `stages` with `params`; the checks of parity."""
    (root / "params.yaml").write_text(json.dumps(params), encoding="utf-8")
    run_stages(root, stages)
    checks: dict[str, Any] = json.loads((root / "reports/parity.json").read_text())["checks"]
    return checks


def unlike_passed(checks: dict[str, Any]) -> dict[str, Any]:
    """Those that did not pass, but for answers, which a random model never ends."""
    return {
        key: check
        for key, check in checks.items()
        if check["verdict"] != "pass" and not key.startswith("behavior")
    }


@pytest.mark.slow
@pytest.mark.base_cells("adapter", "scales", families="name")
@pytest.mark.parametrize("name", [name for name in ON_GGUF if name not in ELSEWHERE])
def test_what_is_trained_on_a_file_is_what_is_served(name: str, tools: Toolchain, tmp_path: Path) -> None:
    source = family(name, tmp_path / "source", tools, **(STRETCHED if name == "llama" else {}))
    rule = "smollm"
    if name == "qwen3_5_text":
        rule = "qwen35"
        with_drafts(source)
    to_gguf(tools, source, tmp_path / "tiny.gguf", "F16", HeaderFields(NAME, rule))
    params = tiny.gguf_params(tmp_path / "tiny.gguf")
    # So much that the change shows beside llama.cpp's rounding, in a Granite's small logits too. At that rate
    # a delta net, whose decay trains as well, would learn nothing, and the Llama ends far off (a loss of 58)
    # on some CPUs, where llama.cpp's arithmetic differs more than on the bare base.
    rate = {"qwen3_5_text": 1.0e-2, "llama": 2.0e-2}.get(name, 5.0e-2)
    params["train"] |= {"learning_rate": rate, "max_steps": 6}
    if name == "phi3":
        params["train"]["target_modules"] = [*FUSED, "gate_up_proj", "down_proj"]
    root = run_stages(tiny.write_project(tmp_path / "project", params), PREPARED)
    scaled = Path(shutil.copytree(root, tmp_path / "scaled"))
    checks = checks_of(root, params, ("train", "lora", "parity"))
    assert unlike_passed(checks) == {}
    assert {"weights_file", "outputs_bare", "outputs_served"} <= checks.keys()

    # At twice that rate an LFM2's convolutions end where a CPU with AVX2 alone chooses other tokens.
    rate = 5.0e-3 if name == "lfm2" else 1.0e-2
    params["train"] |= {"tuner": "scales", "learning_rate": rate, "weight_decay": 0.0}
    params["evaluate"] |= {"models": ["source", "base", "tuned"]}
    checks = checks_of(scaled, params, ("train", "tuned", "parity"))
    assert unlike_passed(checks) == {}
    assert "outputs_served" in checks
