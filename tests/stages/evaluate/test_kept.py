"""pipeline.stages.evaluate.kept: other scorers score the stored answers, anything else measures again."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.__main__ import run
from pipeline.config.params import load_params
from pipeline.core.jsonl import read_rows
from pipeline.stages.evaluate import kept
from pipeline.workflow.keys.code_keys import key_file
from pipeline.workflow.state import record


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    root = Path(shutil.copytree(finished, tmp_path / "project"))
    shutil.rmtree(root / kept.FOLDER, ignore_errors=True)
    (root / key_file("evaluate")).parent.mkdir(parents=True, exist_ok=True)  # Then a stage writes its key.
    return root


def evaluated(root: Path, model: str, **settings: Any) -> dict[str, Any]:
    """The figures of a model after `evaluate` with these settings."""
    params = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    params["evaluate"] |= settings
    (root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    for file in (root / "reports/eval").glob(f"{model}.*"):
        file.unlink()  # as Snakemake does before a job
    run(f"evaluate@{model}", root, None)
    figures: dict[str, Any] = json.loads((root / f"reports/eval/{model}.json").read_text())
    return figures


def test_other_scorers_score_the_stored_answers(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = evaluated(project, "base-F16")
    answers = list(read_rows(project / "reports/eval/base-F16.answers.jsonl"))
    capsys.readouterr()
    second = evaluated(project, "base-F16", scorers=["rouge_l", "exact_match"])
    assert "are scored again" in capsys.readouterr().out
    assert second["speed"] == first["speed"]
    assert (first["task"]["scorer"], second["task"]["scorer"]) == ("exact_match", "rouge_l")
    assert second["task"]["scores"].keys() == {"rouge_l", "exact_match"}
    assert second["task_with_examples"]["scores"].keys() == {"rouge_l", "exact_match"}
    rescored = list(read_rows(project / "reports/eval/base-F16.answers.jsonl"))
    assert [answer["answer"] for answer in rescored] == [answer["answer"] for answer in answers]
    assert rescored[0]["scores"].keys() == {"rouge_l", "exact_match"}


@pytest.mark.parametrize("what", ["nothing", "rows", "code", "machine", "damaged"])
def test_anything_else_measures_again(
    what: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(project, "F16")
    scorers = ["rouge_l"]
    if what == "nothing":
        scorers = ["exact_match"]  # as before: the stage was run again to measure again
    elif what == "rows":
        rows = project / "data/final/test.jsonl"
        rows.write_text(rows.read_text(encoding="utf-8").replace("What is", "How much is"), encoding="utf-8")
    elif what == "code":
        key = project / key_file("evaluate")
        assert key.read_text()
        monkeypatch.setattr(record, "refresh_keys_for", lambda *_: key.write_text("other code\n"))
    elif what == "machine":
        monkeypatch.setattr(kept, "machine", lambda: "another CPU")
    else:
        (project / ".quench/evaluated/F16.json").write_text('{"half')
    capsys.readouterr()
    evaluated(project, "F16", scorers=scorers)
    assert "are scored again" not in capsys.readouterr().out


def test_answers_are_kept_beside_disturbed_speeds(project: Path) -> None:
    settings = load_params(project / "params.yaml").evaluate
    kept.keep(project, "F16", "its files", settings, kept.Measured({"speed": {"disturbed": True}}))
    assert (project / kept.FOLDER / "F16.json").exists()
