"""budget in a project: a level as any other for evaluate, the gate, the report, serve and ship."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from conftest import run_stages
from html_page import Page

from pipeline.__main__ import run
from pipeline.commands.project import Project
from pipeline.config.params import load_params
from pipeline.core.errors import ConfigError
from pipeline.planning.budget import file_bytes
from pipeline.planning.config_file import load_shape
from pipeline.stages.parity.level_weights import level_weights


@pytest.fixture
def project(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The finished project, which wants one more level."""
    monkeypatch.setattr("pipeline.stages.budget.stage.ROWS", 4)
    root = Path(shutil.copytree(finished, tmp_path / "project"))
    values = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    values["quantize"]["budgets"] = ["5.5bpw"]
    values["evaluate"]["models"].append("5.5bpw")
    (root / "params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return root


@pytest.mark.slow
def test_a_budget_is_a_level_of_the_project(project: Path) -> None:
    run_stages(project, ("budget@5.5bpw", "evaluate@5.5bpw", "report"))
    record = json.loads((project / "reports/budget/5.5bpw.json").read_text(encoding="utf-8"))
    file = project / "models/gguf/tiny-5.5bpw.gguf"
    assert record["bits_per_weight"] <= 5.5
    assert file.stat().st_size == record["bytes"]
    assert not (project / "models/.budget").exists()
    params = load_params(project / "params.yaml")
    assert Project(params, project).files("5.5bpw").gguf == file
    assert file_bytes(load_shape(project / "models/base/config.json"), "5.5bpw") >= file.stat().st_size * 0.9
    quants = json.loads((project / "reports/quants.json").read_text(encoding="utf-8"))
    assert quants["5.5bpw"]["bytes"] == record["bytes"]
    page = Page((project / "reports/index.html").read_text(encoding="utf-8"))
    assert "Levels made to measure" in page.text
    assert "5.5bpw" in page.text
    check = level_weights(project / "models/gguf/tiny-F16.gguf", file, "5.5bpw")
    assert check.verdict == "pass"


def test_a_budget_that_is_not_in_the_settings_is_refused(finished: Path) -> None:
    with pytest.raises(ConfigError, match="Q-BUDGET-008"):
        run("budget@1GB", finished, None)
