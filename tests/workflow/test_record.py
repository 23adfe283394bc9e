"""The stage runner: what changes while a stage runs is not recorded, a stage runs once at a time, and not
where DVC has its outputs.
"""

import errno
import fcntl
import json
import os
import re
import shutil
from contextlib import chdir
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import pipeline.stages.curate.stage
from pipeline.__main__ import main
from pipeline.core.errors import MachineError
from pipeline.core.locks import lock_file, take
from pipeline.workflow.prepare import prepare, take_run_lock
from pipeline.workflow.state.lockfile import recorded_stages

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
        ("params.yaml", lambda text: "", True),
        ("params.lock.yaml", lambda text: text.replace("1", "2"), True),
    ],
)
def test_an_edit_during_the_run(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file, edit, noticed
) -> None:
    """DVC would record the new values as the ones that made the outputs."""
    recorded = []
    real = pipeline.stages.curate.stage.main
    (project / "params.lock.yaml").write_text("curate: {seed: 1}\n")

    def edited_meanwhile(*arguments) -> None:
        real(*arguments)
        path = project / file
        assert edit(path.read_text()) != path.read_text()
        path.write_text(edit(path.read_text()))

    monkeypatch.setattr(pipeline.stages.curate.stage, "main", edited_meanwhile)
    monkeypatch.setattr("pipeline.workflow.remote.record", lambda stage, root: recorded.append(stage))
    assert main(["curate", "--root", str(project)]) == (6 if noticed else 0)
    assert recorded == ([] if noticed else ["curate"])
    assert ("Q-WORKFLOW-022" in capsys.readouterr().err) == noticed


def test_a_stage_is_recorded_by_dvc_with_the_raw_data_that_it_read(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dvc.repo import Repo

    (project / ".dvc").rmdir()
    with chdir(project), Repo.init(str(project), no_scm=True) as repo:
        repo.add("data/raw")
    (project / "data/raw/more.jsonl").write_text('{"text": "More of it."}\n')
    with monkeypatch.context() as patch:
        patch.setattr(pipeline.stages.curate.stage, "main", lambda *_: None)
        assert main(["curate", "--root", str(project)]) == 4
        assert re.search(r"Q-WORKFLOW-014: .*curate \((?!ERROR).*data/final", capsys.readouterr().err)
        patch.setenv("DVC_STAGE", "curate")  # it records what it runs itself
        assert main(["curate", "--root", str(project)]) == 0 and not (project / "dvc.lock").exists()
    assert main(["curate", "--root", str(project)]) == 0
    [raw] = yaml.safe_load((project / "data/raw.dvc").read_text())["outs"]
    entry = yaml.safe_load((project / "dvc.lock").read_text())["stages"]["curate"]
    assert entry["deps"][0]["md5"] == raw["md5"] and raw["nfiles"] == 2


def test_a_stage_runs_once_at_a_time(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / ".quench").mkdir()
    with (project / ".quench/curate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print(os.getppid(), end="", file=lock, flush=True)
        assert main(["curate", "--root", str(project)]) == 6
        assert re.search(rf"Q-WORKFLOW-011: curate .*{os.getppid()} ", capsys.readouterr().err)
        assert main(["report", "--root", str(project)]) == 6
        assert "Q-CORE-002" in capsys.readouterr().err
    with take(lock_file("curate", project)):
        assert main(["curate", "--root", str(project)]) == 6
        assert re.search(rf"Q-WORKFLOW-011: curate .*{os.getpid()} ", capsys.readouterr().err)
    assert main(["report", "--root", str(project)]) == 3
    assert re.search(r"Q-CORE-001: .*reports/data\.json .*`quench run curate`", capsys.readouterr().err)


@pytest.mark.parametrize("name", ["run", "curate"])
def test_a_folder_in_a_locks_place_is_one_sentence(
    project: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / f".quench/{name}.lock").mkdir(parents=True)
    if name == "run":
        with pytest.raises(MachineError, match=r"Q-WORKFLOW-010: .*run\.lock"):
            take_run_lock(project)
    else:
        assert main(["curate", "--root", str(project)]) == 6
        assert "Q-WORKFLOW-010" in capsys.readouterr().err


def test_a_disk_without_room_for_snakemakes_own_log_is_one_sentence(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    with pytest.raises(SystemExit) as caught:
        prepare(root=project)
    assert caught.value.code == MachineError.exit_code
    assert "Q-CORE-004" in capsys.readouterr().err


@pytest.mark.parametrize(
    "raised", [FileNotFoundError("No such file: x"), OSError("torn"), ValueError("torn")]
)
def test_an_input_that_dvc_removes_meanwhile_is_one_sentence(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: Exception,
) -> None:
    def removed_meanwhile(*arguments: object) -> None:
        (project / "models/base.json").unlink()
        raise raised

    monkeypatch.setattr(pipeline.stages.curate.stage, "main", removed_meanwhile)
    assert main(["curate", "--root", str(project)]) == 3
    assert "Q-CORE-001" in capsys.readouterr().err


@pytest.mark.parametrize("stage", ["preprocess", "parity", "evaluate@F16"])
def test_an_input_that_is_not_there_is_one_sentence(
    tiny_root: Path, stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([stage, "--root", str(tiny_root)]) == 3
    said = capsys.readouterr().err
    assert "Q-CORE-001" in said and "`quench run`" in said


@pytest.mark.parametrize(
    ("id", "commands"),
    [
        # a job: the next to be looked at is the folder, which is not there
        ("Q-CORE-003: ", f"train, quantize@Q4_K_M, quantize@{'x' * 100}, train --no-resume, train --replay"),
        ("Q-CORE-003: ", "--resume train, train --resume checkpoint-1, curate --resume"),
        ("Q-WORKFLOW-019: ", "nosuch, nosuch@Q4_K_M, quantize, quantize@, train@Q4_K_M, quantize@a@b"),
        (
            "Q-WORKFLOW-019: ",
            f"quantize@{'x' * 101}, quantize@../../else/x, quantize@a/b, quantize@\x1b[2J",
        ),
        ("Q-WORKFLOW-020: --resume checkpoint-1 ", "curate --resume checkpoint-1"),
        ("Q-WORKFLOW-020: --", "curate --no-resume, curate --replay"),
    ],
)
def test_what_is_no_job_is_refused_before_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], id: str, commands: str
) -> None:
    (tmp_path / "file").touch()
    roots = ("nowhere", "file", "x" * 300, *([""] if "WORKFLOW" in id else []))
    for command, root in product(commands.split(", "), roots):
        assert main([*command.split(), "--root", str(tmp_path / root)]) == 2
        said = capsys.readouterr().err
        assert id in said and "\x1b" not in said, command
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    usage = " ".join(capsys.readouterr().out.partition("\n\n")[0].split())
    options = "[-h] [--params FILE] [--root DIR] [--resume [CHECKPOINT]] [--no-resume] [--replay]"
    assert usage.endswith(f"{options} [--processes N] [STAGE]") and end.value.code == 0


@pytest.mark.parametrize(("elsewhere", "spared"), [(False, True), (True, False)])
def test_a_stage_whose_outputs_came_back_does_not_run(
    project: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool, spared: bool
) -> None:
    """Nor is it recorded again; `--params FILE` is not what DVC's record is about."""
    happened = []
    monkeypatch.setattr(pipeline.stages.curate.stage, "main", lambda params, root: happened.append("run"))
    monkeypatch.setattr(
        "pipeline.workflow.state.record.record", lambda stage, root: happened.append("record")
    )
    monkeypatch.setattr("pipeline.workflow.settle.reuse", lambda stage, root: True)
    other = project / "other.yaml"
    other.write_text((project / "params.yaml").read_text())
    assert main(["curate", "--root", str(project), *(["--params", str(other)] if elsewhere else [])]) == 0
    assert happened == ([] if spared else ["run"])


def test_a_lock_that_fails_is_no_project_that_can_only_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", failing)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "dvc.lock").touch()
    with pytest.raises(OSError, match="No locks"):
        recorded_stages(tmp_path)
