"""Folders that the world brings: paths with characters of every kind, and stages that are run by hand."""

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from make import quench
from toy_project import write_toy

from pipeline.__main__ import main
from pipeline.core.errors import DataError
from pipeline.workflow.prepare import prepare
from pipeline.workflow.settle import settle
from pipeline.workflow.state.lockfile import recorded_stages

# a name that DVC takes for a field of a template, an unfinished one, the same in a parent's name, Latin-1
UNUSABLE = ["a{b}c", "a{b", "b}", "my {notes}/project", "${HOME}", os.fsdecode(b"caf\xe9")]


@pytest.mark.parametrize("name", UNUSABLE)
def test_no_project_is_made_where_dvc_fails(tmp_path: Path, name: str) -> None:
    done = quench("new", tmp_path / name)
    assert done.exit_code == 2 and "Q-WORKFLOW-026" in done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_project_that_was_moved_there_runs_nothing(
    tiny_root: Path,
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither a run nor a stage by hand, which would begin with gigabytes of the base."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    (tmp_path / name).parent.mkdir(exist_ok=True)
    root = tiny_root.rename(tmp_path / name)
    (root / ".dvc").mkdir()
    before = sorted(root.rglob("*"))
    with pytest.raises(SystemExit) as caught:
        prepare(root=root)
    assert caught.value.code == 2 and "Q-WORKFLOW-026" in capsys.readouterr().err
    assert main(["base", "--root", str(root)]) == 2
    assert "Q-WORKFLOW-026" in capsys.readouterr().err
    assert sorted(root.rglob("*")) == before


def test_a_link_into_such_a_folder_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "a{b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a{b")
    done = quench("new", tmp_path / "link" / "mine")
    assert done.exit_code == 2 and "Q-WORKFLOW-026" in done.output
    assert not list((tmp_path / "a{b").iterdir())


GRAPH = {
    "imatrix": {"outs": ["models/imatrix"]},
    "convert": {"outs": ["models/gguf/tiny-F16.gguf", "models/gguf/tiny-base-F16.gguf"]},
    "quantize": {
        "foreach": "${quantize.levels}",
        "do": {
            "deps": ["models/gguf/tiny-F16.gguf", "models/gguf/tiny-base-F16.gguf", "models/imatrix"],
            "outs": ["models/gguf/tiny-${item}.gguf"],
        },
    },
    "evaluate": {
        "foreach": "${evaluate.models}",
        "do": {"deps": ["models/gguf/tiny-F16.gguf"], "outs": ["reports/eval/${item}.json"]},
    },
    "report": {"deps": ["reports/eval"], "outs": ["reports/index.html"]},
    "curate": {"deps": ["data/raw", "data/guard", "models/base.json"], "outs": ["data/final"]},
}


@pytest.fixture
def project(tiny_root: Path) -> Path:
    """A DVC project with some of the stages, of which only convert has run."""
    (tiny_root / ".dvc").mkdir()
    (tiny_root / "dvc.yaml").write_text(
        yaml.safe_dump({"stages": {name: {"cmd": "x", **stage} for name, stage in GRAPH.items()}})
    )
    for file in GRAPH["convert"]["outs"]:
        (tiny_root / file).parent.mkdir(parents=True, exist_ok=True)
        (tiny_root / file).touch()
    (tiny_root / "models/base.json").write_text(json.dumps({"added_tokens": []}))
    return tiny_root


@pytest.mark.parametrize(
    ("stage", "missing", "maker"),
    [
        ("quantize@Q4_K_M", "models/imatrix", "imatrix"),
        ("quantize@Q5_K_M", "models/gguf/tiny-base-F16.gguf", "convert"),
        ("evaluate@F16", "models/gguf/tiny-F16.gguf", "convert"),
        # a folder that several stages write into
        ("report", "reports/eval", "evaluate@base-F16"),
    ],
)
def test_a_stage_by_hand_names_the_stage_to_run_first(
    project: Path, stage: str, missing: str, maker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if it would do without that input: DVC can't record it then."""
    if (project / missing).exists():
        (project / "models/imatrix").mkdir()
        (project / missing).unlink()
    assert main([stage, "--root", str(project)]) == 3
    said = capsys.readouterr().err
    assert "Q-CORE-001" in said and missing in said and f"`quench run {maker}`" in said


def test_a_folder_of_the_user_s_that_is_missing_is_named(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["curate", "--root", str(project)]) == 3
    said = capsys.readouterr().err
    assert "Q-CORE-001" in said and "data/guard" in said
    assert not (project / "data/final").exists()
    shutil.rmtree(project / "data/raw")
    (project / "data/guard").mkdir()
    assert main(["curate", "--root", str(project)]) == 3
    assert "data/raw" in capsys.readouterr().err


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_dvc_lock_with_the_marks_of_a_merge_is_kept(tmp_path: Path, end: str) -> None:
    """treeverse/dvc#8638: set aside as one that a kill cut short, it would cost every training on record."""
    root = write_toy(tmp_path / "toy")
    sides = "  base: {cmd: one}", "  base: {cmd: two}"
    lines = ["schema: '2.0'", "stages:", "<<<<<<< HEAD", sides[0], "=======", sides[1], ">>>>>>> theirs", ""]
    lock = root / "dvc.lock"
    lock.write_text(end.join(lines), newline="")
    before = lock.read_bytes()
    for read in (settle, recorded_stages):
        with pytest.raises(DataError, match="--ours") as caught:
            read(root)
        assert caught.value.id == "Q-WORKFLOW-018"
    assert lock.read_bytes() == before
    assert not list(root.glob("dvc.lock.*"))
