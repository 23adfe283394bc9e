"""Jobs that SLURM still has of a killed run, and what the profile asks SLURM for."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from make import script

from pipeline.core.errors import MachineError, ToolError
from pipeline.core.places import PROJECT
from pipeline.workflow import cluster_jobs as jobs
from pipeline.workflow.cluster_jobs import leave_failure, wait_for_jobs
from pipeline.workflow.remote import finish_workflow
from pipeline.workflow.stages import table

SUBMITTED = ".snakemake/slurm_logs"  # Snakemake makes it before it submits a job
FINISHED = ".quench/finished"
RUN = "0b9c2f0e-6f1e-4c1d-9a43-6f1f0f6f3a11"  # how the plugin names the jobs of one run


def answer(root: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have `squeue` be this shell script, for a project that has submitted jobs."""
    (root / SUBMITTED).mkdir(parents=True, exist_ok=True)
    squeue = script(root / "bin" / "squeue", text)
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
    monkeypatch.setattr(jobs, "time", SimpleNamespace(sleep=interrupt))  # a dry run never waits
    with pytest.raises(MachineError) as waiting:
        wait_for_jobs(tmp_path, is_dry_run=True)
    assert waiting.value.id == "Q-WORKFLOW-011" and "train" in waiting.value.sentence
    assert re.findall(r"job (\d+), (\w+)", waiting.value.sentence) == [("17", "running"), ("20", "pending")]
    (tmp_path / SUBMITTED).rmdir()  # without submitted jobs SLURM is not asked
    wait_for_jobs(tmp_path, is_dry_run=True)


def test_a_job_does_not_wait_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(tmp_path, monkeypatch, f"echo '17|RUNNING|rule_train|{RUN}|{tmp_path}'")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    wait_for_jobs(tmp_path, is_dry_run=True)


def test_no_answer_is_not_taken_for_no_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(tmp_path, monkeypatch, "echo slurmctld is away >&2; exit 1")
    with pytest.raises(ToolError, match=r"Q-WORKFLOW-030: .*slurmctld is away"):
        wait_for_jobs(tmp_path, is_dry_run=False)


def test_a_run_waits_until_it_is_interrupted_or_they_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs, "LOOK_SECONDS", 0.01)
    job = f"echo '17|RUNNING|rule_train|{RUN}|{tmp_path}'"
    answer(tmp_path, monkeypatch, job)
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "time", SimpleNamespace(sleep=interrupt))  # not the one that subprocess uses
        with pytest.raises(SystemExit) as end:
            wait_for_jobs(tmp_path, is_dry_run=False)
    assert end.value.code == 130 and "job 17" in capsys.readouterr().err
    # the third answer is that there is no job
    answer(tmp_path, monkeypatch, f"echo >> {tmp_path}/asked; [ $(wc -l < {tmp_path}/asked) -gt 2 ] || {job}")
    wait_for_jobs(tmp_path, is_dry_run=False)
    assert len((tmp_path / "asked").read_text()) == 3
    assert capsys.readouterr().err.count("job 17") == 1  # said once


FAILURES = {
    "train": {"stage": "train", "error": "Q-TRAIN-001: no rows", "exit_code": 3},
    "merge": {"stage": "merge", "error": "Q-CORE-004: the disk is full", "exit_code": 6},
}


def test_what_failed_is_said_once_by_name_and_what_is_torn_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FINISHED).mkdir(parents=True)
    torn = {"torn": "{", "older": '{"stage": "base"}', ".hidden": json.dumps(FAILURES["merge"])}
    for name, text in ({name: json.dumps(left) for name, left in FAILURES.items()} | torn).items():
        (tmp_path / FINISHED / f"{name}.json").write_text(text)
    with pytest.raises(SystemExit) as end:
        finish_workflow(tmp_path, failed=True)
    assert end.value.code == 6
    said = re.findall(r"^(\w+): (Q-\w+-\d+)", capsys.readouterr().err, re.MULTILINE)
    assert said == [("merge", "Q-CORE-004"), ("train", "Q-TRAIN-001")]
    finish_workflow(tmp_path, failed=True)


@pytest.mark.parametrize(
    ("remote", "folder", "left"),
    [("1", ".dvc", 1), ("1", "data", 0), ("", ".dvc", 0), ("0", ".dvc", 0)],
)
def test_only_a_job_elsewhere_leaves_its_error_for_the_main_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: str, folder: str, left: int
) -> None:
    (tmp_path / folder).mkdir()
    monkeypatch.setenv("QUENCH_REMOTE", remote)
    leave_failure("train", "Q-TRAIN-001: no rows", 3, tmp_path)
    files = (tmp_path / FINISHED).glob("*")
    assert [json.loads(file.read_text()) for file in files] == [FAILURES["train"]] * left


GPU = {"slurm": "gpu"}  # a profile's name for the resource
CLUSTERS = sorted({path.parent.name for path in PROJECT.glob("profiles/*/config.yaml")} - {"default"})


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_profile_gives_a_gpu_to_what_trains_and_keeps_what_the_default_one_says(cluster: str) -> None:
    profile, default = (
        yaml.safe_load((PROJECT / "profiles" / name / "config.yaml").read_text())
        for name in (cluster, "default")
    )
    assert {key: profile[key] for key in default if key != "cores"} == {
        key: value for key, value in default.items() if key != "cores"
    }
    stages = table().stages
    training = {name for name, stage in stages.items() if name == "train" or "train" in stage.starts}
    resources = profile["set-resources"]
    assert {name for name, given in resources.items() if given.get(GPU[cluster])} == training
    assert resources.keys() <= stages.keys()
