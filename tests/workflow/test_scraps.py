"""scraps: what killed runs left half made goes, what may be somebody's or a later run's stays."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from make import script

from pipeline.core.places import PROJECT
from pipeline.workflow.state.record import running

SCRAPS = [
    "models/.merging/16-bit/half",
    "models/.parity/x",
    "data/.curating/x",
    "models/gguf/.demo-F16.gguf.writing",
    "models/checkpoints/.writing/half",
    "models/checkpoints/.checkpoint-2.writing/half",
    "models/gguf/.demo.merging/x",
    "reports/eval/.F16.json.writing",
    "models/base/.deep.writing",
]
KEPT = [
    "models/base/model.safetensors",
    "models/.base.download/abc/part",
    "models/.compare/NF4-1/models/.merging/x",
    "models/checkpoints/checkpoint-1/x",
    "data/raw/.notes.writing",
    "data/raw/.notes.old",
    "data/evaluation/.mine.old",
    "models/.notes.old",
    "data/.writing.jsonl",
    "data/.old",
    "models/.my-notes.old/x",
    "models/base/.mine.old/x",
    "reports/.base.old/x",
    "params.yaml",
]


def write(root: Path, names: list[str]) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * 1000)


def test_scraps_are_swept_and_named_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, [*SCRAPS, *KEPT])
    with running("merge", tmp_path):
        assert [name for name in SCRAPS if (tmp_path / name).exists()] == []
        write(tmp_path, SCRAPS[:1])
    assert (tmp_path / SCRAPS[0]).exists()  # made since: its owner removes it
    assert [name for name in KEPT if not (tmp_path / name).exists()] == []
    (output,) = capsys.readouterr().err.splitlines()
    assert "models/.merging (" in output and output.count("(1.0 kB)") == len(SCRAPS)


def test_nothing_is_swept_while_another_may_be_writing_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running("parity", tmp_path):
        write(tmp_path, SCRAPS)
        with running("merge", tmp_path):
            assert all((tmp_path / name).exists() for name in SCRAPS)
    with running("merge", tmp_path):
        assert not any((tmp_path / name).exists() for name in SCRAPS)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_sub_project_has_its_own_scraps_and_its_own_workers(tmp_path: Path) -> None:
    busy, idle = (tmp_path / "models/.compare" / name for name in ("NF4-1", "NF4-2"))
    for project in (busy, idle):
        write(project, [".quench/x", "models/.merging/x"])
    with running("merge", busy):
        write(busy, ["models/.merging/x"])
        with running("merge", tmp_path):
            assert [(project / "models/.merging").exists() for project in (busy, idle)] == [True, False]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    "artifact",
    [
        "models/base",
        "data/tokens",
        "models/compare/nf4-1",
        "models/bundle/demo",
        "models/checkpoints/teacher",
    ],
)
def test_a_kill_while_an_artifact_was_replaced_is_undone(
    tmp_path: Path, artifact: str, whole: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    parent, _, name = artifact.rpartition("/")
    write(tmp_path, [f"{parent}/.{name}.old/model"])
    if whole:
        write(tmp_path, [f"{artifact}/new"])
    with running("merge", tmp_path):
        assert [path.name for path in (tmp_path / parent).iterdir()] == [name]
        assert [path.name for path in (tmp_path / artifact).iterdir()] == ["new" if whole else "model"]
    assert (f"{parent}/.{name}.old" if whole else artifact) in capsys.readouterr().err


def test_a_lock_that_cannot_be_had_sweeps_nothing_and_stops_no_stage(tmp_path: Path) -> None:
    write(tmp_path, SCRAPS)
    (tmp_path / ".quench/work.lock").mkdir(parents=True)  # in its way: for root, rights are none
    with running("merge", tmp_path):
        assert all((tmp_path / name).exists() for name in SCRAPS)


def test_what_can_not_be_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    write(tmp_path, ["models/.merging/x"])
    monkeypatch.setattr("pipeline.workflow.state.cleanup.remove", refuse)
    with running("merge", tmp_path):
        pass
    said = capsys.readouterr().err
    assert "models/.merging" in said and "Permission denied" in said


def test_nothing_is_swept_while_a_snakemake_has_jobs_that_hold_no_lock(tmp_path: Path) -> None:
    """Its main process shares the lock after `prepare`, until it ends."""
    (tmp_path / "data/raw").mkdir(parents=True)
    (tmp_path / "data/raw/chats.jsonl").write_text("{}\n")
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(PROJECT / name, tmp_path)
    code = "from pipeline.workflow.prepare import prepare; prepare(); print('ready', flush=True); input()"
    main = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with main:
        assert main.stdout and main.stdout.readline() == "ready\n"
        write(tmp_path, SCRAPS)
        with running("merge", tmp_path):
            assert all((tmp_path / name).exists() for name in SCRAPS)
        main.communicate("\n")
    assert main.returncode == 0
    with running("merge", tmp_path):
        assert not any((tmp_path / name).exists() for name in SCRAPS)


@pytest.mark.parametrize("squeue", ["echo '17|RUNNING|rule_train|{run}|{root}'", "exit 1"])
def test_nothing_is_swept_while_a_cluster_has_jobs_or_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squeue: str
) -> None:
    write(tmp_path, SCRAPS)
    (tmp_path / ".snakemake/slurm_logs").mkdir(parents=True)
    answer = squeue.format(run="0b9c2f0e-6f1e-4c1d-9a43-6f1f0f6f3a11", root=tmp_path)
    tool = script(tmp_path / "bin/squeue", answer)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    with running("merge", tmp_path):
        assert all((tmp_path / name).exists() for name in SCRAPS)
    script(tool, "")
    with running("merge", tmp_path):
        assert not any((tmp_path / name).exists() for name in SCRAPS)
