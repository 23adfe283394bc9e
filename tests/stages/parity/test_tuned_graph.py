"""The whole of parity for a base's file with trained scales, on a tiny model: what is trained is what is
served, and the page says so.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from gguf_edit import change_rows
from html_page import Page
from tuned_by_hand import train_by_chance, tune_by_hand

from pipeline.__main__ import run
from pipeline.core.errors import GateError


@pytest.fixture
def project(served: Path, tmp_path: Path) -> Path:
    """The finished project of an adapter with scales trained by chance in its place."""
    root = Path(shutil.copytree(served, tmp_path / "project"))
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["train"]["tuner"] = "scales"
    params["evaluate"]["models"] = ["source", "base", "tuned"]
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    base, adapter = root / "models/base", root / "models/adapter"
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (adapter / name).unlink()
    (root / "models/gguf/tiny-lora.gguf").unlink()
    train_by_chance(base, adapter)
    tune_by_hand(base, adapter, root / "models/gguf/tiny-tuned.gguf")
    return root


def test_trained_scales_are_what_is_served_and_one_changed_byte_is_not(project: Path) -> None:
    run("parity", project, None)
    report: Any = json.loads((project / "reports/parity.json").read_text(encoding="utf-8"))
    found = report["checks"]
    assert sorted(report["files"]) == ["model.gguf", "tiny-tuned.gguf"]
    assert {check["verdict"] for key, check in found.items() if not key.startswith("behavior")} == {"pass"}
    assert found["outputs_served"]["figure"] <= found["outputs_served"]["limit"]
    text = Page((project / "reports/parity.html").read_text(encoding="utf-8")).text
    for words in (
        "that file with other scales in its blocks",
        "trained to tuned GGUF: ✓ weights, ✓ outputs",
        "tuned GGUF to served: ✓",
        "the base in training to base GGUF: ✓ weights, ✓ outputs",
    ):
        assert words in text, words
    assert "LoRA" not in text and "Merged" not in text and "adapter" not in text

    # the tuned file's own bytes for the base's: what was trained has no effect
    shutil.copy(project / "models/base/model.gguf", project / "models/gguf/tiny-tuned.gguf")
    with pytest.raises(GateError, match=r"the tuned file has no effect, run `snakemake --force tuned`"):
        run("parity", project, None)
