"""Jobs that SLURM still has of a killed run, and what the profile asks SLURM for."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from pipeline.commands.new import SNAKEFILE
from pipeline.core.errors import MachineError, ToolError
from pipeline.core.places import PROJECT
from pipeline.workflow import cluster
from pipeline.workflow.cluster import SUBMITTED, jobs_at_work, wait_for_jobs
from pipeline.workflow.shards import PHASES
from pipeline.workflow.stages import table

RUN = "0b9c2f0e-6f1e-4c1d-9a43-6f1f0f6f3a11"  # how the plugin names the jobs of one run


def answer(root: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Have `squeue` be this shell script, for a project that has submitted jobs."""
    (root / SUBMITTED).mkdir(parents=True, exist_ok=True)
    squeue = root / "bin" / "squeue"
    squeue.parent.mkdir(exist_ok=True)
    squeue.write_text(f"#!/bin/sh\n{script}\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:/usr/bin:/bin")


def interrupt(_: object) -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt


def test_jobs_are_told_by_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        f"17|RUNNING|rule_train|{RUN}|{tmp_path}",
        f"18|PENDING|rule_merge|{RUN}|{tmp_path}/other",
        f"19|RUNNING|(null)|bash|{tmp_path}",  # the user's own shell
        f"20|PENDING|(null)|{RUN}|{tmp_path}",  # a group of rules
    )
    answer(tmp_path, monkeypatch, "\n".join(f"echo '{line}'" for line in lines))
    assert jobs_at_work(tmp_path) == ["train (SLURM job 17, running)", "(null) (SLURM job 20, pending)"]


def test_a_project_that_submitted_nothing_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(tmp_path, monkeypatch, "exit 1")
    (tmp_path / SUBMITTED).rmdir()
    assert jobs_at_work(tmp_path) == []


def test_no_answer_is_not_taken_for_no_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(tmp_path, monkeypatch, "echo slurmctld is away >&2; exit 1")
    with pytest.raises(ToolError, match=r"Q-WORKFLOW-030.*slurmctld is away"):
        wait_for_jobs(tmp_path, is_dry_run=False)


def test_a_run_waits_and_a_dry_run_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.01)
    job = f"echo '17|RUNNING|rule_train|{RUN}|{tmp_path}'"
    answer(tmp_path, monkeypatch, job)
    with pytest.raises(MachineError, match=r"Q-WORKFLOW-011.*train \(SLURM job 17"):
        wait_for_jobs(tmp_path, is_dry_run=True)
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "time", SimpleNamespace(sleep=interrupt))  # not the one that subprocess uses
        with pytest.raises(SystemExit) as end:
            wait_for_jobs(tmp_path, is_dry_run=False)
    assert end.value.code == 130
    # the third answer is that there is no job
    answer(tmp_path, monkeypatch, f"echo >> {tmp_path}/asked; [ $(wc -l < {tmp_path}/asked) -gt 2 ] || {job}")
    wait_for_jobs(tmp_path, is_dry_run=False)
    assert len((tmp_path / "asked").read_text()) == 3


@pytest.mark.parametrize("text", [(PROJECT / "Snakefile").read_text(), SNAKEFILE], ids=["here", "projects"])
def test_every_main_snakefile_records_what_jobs_finished(text: str) -> None:
    """Snakemake takes these two from the main file alone, not from one that it includes."""
    assert "onsuccess:\n    finish_workflow(failed=False)\n" in text
    assert "onerror:\n    finish_workflow(failed=True)\n" in text


def test_the_profile_gives_a_gpu_to_what_trains_and_keeps_what_the_default_one_says() -> None:
    profile, default = (
        yaml.safe_load((PROJECT / "profiles" / name / "config.yaml").read_text())
        for name in ("slurm", "default")
    )
    assert {key: profile[key] for key in default if key != "cores"} == {
        key: value for key, value in default.items() if key != "cores"
    }
    stages = table().stages
    training = {name for name, stage in stages.items() if name == "train" or "train" in stage.starts}
    asked = profile["set-resources"]
    assert {name for name, resources in asked.items() if resources.get("gpu")} == training
    assert asked.keys() <= stages.keys() | {f"curate_{phase}" for phase in PHASES}
