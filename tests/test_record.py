"""The stage runner: what changes while a stage runs is not recorded, and a stage runs once at a time."""

import fcntl
import json
from pathlib import Path

import pytest

import pipeline.curate
from pipeline.__main__ import main
from pipeline.workflow.record import inputs_state

DVC_YAML = """
stages:
  curate:
    cmd: python -m pipeline curate
    deps: [data/raw, models/base.json]
    params: [curate]
    outs: [data/final]
"""


@pytest.fixture
def project(tiny_root: Path) -> Path:
    """A project whose `curate` is known to DVC, with the lineage file that it reads."""
    (tiny_root / ".dvc").mkdir()
    (tiny_root / "dvc.yaml").write_text(DVC_YAML)
    (tiny_root / "models").mkdir()
    (tiny_root / "models/base.json").write_text(json.dumps({"added_tokens": []}))
    return tiny_root


@pytest.mark.parametrize(
    ("file", "edit", "noticed"),
    [
        ("params.yaml", lambda text: text.replace("test_fraction: 0.2", "test_fraction: 0.4"), True),
        ("data/raw/chats.jsonl", lambda text: text + "\n", True),
        ("params.yaml", lambda text: text.replace("port: 8081", "port: 8082"), False),
    ],
)
def test_an_edit_during_the_run(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file, edit, noticed) -> None:
    """DVC would record the new values as the ones that made the outputs."""
    recorded = []
    real = pipeline.curate.main

    def edited_meanwhile(*arguments) -> None:
        real(*arguments)
        path = project / file
        assert edit(path.read_text()) != path.read_text()
        path.write_text(edit(path.read_text()))

    monkeypatch.setattr(pipeline.curate, "main", edited_meanwhile)
    monkeypatch.setattr("pipeline.workflow.record.record", lambda stage, root: recorded.append(stage))
    assert main(["curate", "--root", str(project)]) == (6 if noticed else 0)
    assert recorded == ([] if noticed else ["curate"])
    assert ("changed while curate ran" in capsys.readouterr().err) == noticed


def test_a_folder_that_dvc_does_not_know_has_no_state(tiny_root: Path) -> None:
    assert inputs_state("curate", tiny_root) is None


def test_a_stage_runs_once_at_a_time(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / ".quench").mkdir()
    with (project / ".quench/curate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["curate", "--root", str(project)]) == 6
    assert "curate is already running in" in capsys.readouterr().err
