"""parity: what was planted between training and serving fails the run by name, and what was not measured is
never called passed.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from gguf_edit import change_tensors, without

from pipeline.__main__ import main


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished project whose files can be changed, and whose parity is quick."""
    root = Path(shutil.copytree(finished, tmp_path / "project"))
    params = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    params["parity"]["depth"] = "quick"
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")
    return root


def run(project: Path) -> tuple[int, dict[str, Any]]:
    code = main(["parity", "--root", str(project)])
    return code, json.loads((project / "reports/parity.json").read_text())["checks"]


def test_a_quick_parity_names_what_it_did_not_measure(project: Path) -> None:
    code, checks = run(project)
    left_out = {key for key, check in checks.items() if check["verdict"] == "not measured"}
    asked = {"behavior_answers_end", "behavior_no_markers"}
    outputs = {f"outputs_{part}" for part in ("trained", "sixteen", "gguf", "q4_k_m", "q5_k_m", "lora")}
    assert (code, left_out) == (0, {*outputs, *asked})
    assert "--depth standard`" in checks["outputs_q4_k_m"]["detail"]
    assert not list((project / "models").glob(".*"))


def test_weights_are_judged_also_where_llama_cpp_refuses_the_file(project: Path) -> None:
    """A GGUF with NaN norms is loaded; without a tensor it isn't, and the weights check names the tensor."""
    change_tensors(project / "models/gguf/tiny-F16.gguf", without("output_norm.weight"))
    code, checks = run(project)
    assert code == 5
    assert "output_norm.weight" in checks["weights_gguf"]["detail"]
    assert checks["text_template"]["verdict"] == checks["tokens_corpus"]["verdict"] == "not measured"
    assert "llama-server ended" in checks["text_template"]["detail"]
