"""The graph of trained scales on a tiny model, from the base to parity: what is trained is what is served."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import run
from pipeline.config.products import product_of
from pipeline.core.errors import GateError


@pytest.fixture
def project(tuned: Path, tmp_path: Path) -> Path:
    """A copy of a finished project, to spoil."""
    return Path(shutil.copytree(tuned, tmp_path / "project"))


@pytest.mark.slow
@pytest.mark.base_cells("scales", families=("qwen2",))
def test_trained_scales_are_what_is_served_and_the_bare_base_is_not(project: Path) -> None:
    report: Any = json.loads((project / "reports/parity.json").read_text(encoding="utf-8"))
    found = report["checks"]
    assert sorted(report["files"]) == ["model.gguf", "tiny-tuned.gguf"]
    assert {check["verdict"] for key, check in found.items() if not key.startswith("behavior")} == {"pass"}
    assert product_of(["tuned"]).needed_checks("tuned", "").keys() <= found.keys()  # what the gate asks for
    assert found["outputs_served"]["figure"] <= found["outputs_served"]["limit"]

    # the base's bytes in the tuned file's place: what was trained has no effect
    shutil.copy(project / "models/base/model.gguf", project / "models/gguf/tiny-tuned.gguf")
    with pytest.raises(GateError, match=r"the tuned file has no effect, run `snakemake --force tuned`"):
        run("parity", project, None)
    assert "✕ weights, ✕ outputs" in (project / "reports/parity.html").read_text(encoding="utf-8")
