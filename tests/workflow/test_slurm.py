"""The real workflow of the tiny model on a real SLURM: what is preempted, killed or fails there costs
nothing, and the bytes are those of one machine.
"""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import slurm
import tiny
import yaml
from conftest import STAGES, run_stages
from make import change_params, ended
from slurm import Slurm, until
from user_project import BIN, clone, nothing_to_do, run

from pipeline.core.hashing import file_hash, tree_hash
from pipeline.core.places import PROJECT
from pipeline.llamacpp.tools import DEFAULT_HOME

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing()),
]
STEPS = 120  # enough of them that a job can be preempted in their midst, also on a fast machine
PAGE = (PROJECT / "docs" / "cluster.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A SLURM for the tests of this module."""
    with slurm.started(tmp_path_factory.mktemp("slurm") / "cluster") as running:
        running.environment["LLAMA_CPP_HOME"] = os.environ.get("LLAMA_CPP_HOME") or str(DEFAULT_HOME)
        yield running


@pytest.fixture(scope="module")
def project(tiny_qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this project for the tiny model, whose training lasts."""
    root = tmp_path_factory.mktemp("slurm-project") / "project"
    root.mkdir()
    clone(tiny_qwen2, root)
    return change_params(root, train={"max_steps": STEPS, "save_steps": 10 * STEPS})


def commands(program: str) -> list[list[str]]:
    """The arguments of each command of the page that starts with `program`, without the profile's."""
    lines = [shlex.split(line, comments=True) for line in re.findall(rf"^{program} .*", PAGE, re.MULTILINE)]
    found = [line[1:] for line in lines]
    if program == "snakemake":
        assert {tuple(words[:2]) for words in found} == {("--workflow-profile", "profiles/slurm")}
        return [words[2:] for words in found]
    return found


def of_rule(cluster: Slurm, rule: str) -> dict[str, str]:
    """{id: state} of all jobs of a rule, ended ones too."""
    return {job: state for job, (state, name) in cluster.jobs(ended=True).items() if name == rule}


def test_a_failed_job_and_a_killed_snakemake(cluster: Slurm, project: Path) -> None:
    """The stage's sentence and exit code reach the user; a job that its Snakemake doesn't outlive counts."""
    params = yaml.safe_load((project / "params.yaml").read_text())
    change_params(project, base={"model": "/nowhere"})
    failed = cluster.snakemake(project, "base")
    code = failed.wait()
    alone = ended([sys.executable, "-m", "pipeline", "base"], cwd=project)
    assert code == alone.returncode > 1, failed.log()
    assert alone.stderr.strip() and alone.stderr in failed.log()

    change_params(project, base=params["base"])
    submitted = cluster.snakemake(project, "base")
    until(lambda: "RUNNING" in of_rule(cluster, "base").values())
    submitted.kill()
    again = cluster.snakemake(project, "base")
    assert again.wait() == 0, again.log()
    assert re.search(r"base \(SLURM job", again.log()) and nothing_to_do(again.log())
    assert len(of_rule(cluster, "base")) == 2  # one failed, one went on
    assert "base" not in json.loads(run(project, "dvc", "status", "--json"))


def test_every_stage_and_a_preempted_training(cluster: Slurm, project: Path, tmp_path: Path) -> None:
    plan, part, everything, together = commands("snakemake")
    assert cluster.snakemake(project, *plan).wait() == 0
    workflow = cluster.snakemake(project, *together)
    steps = project / "models/checkpoints/steps.jsonl"
    until(lambda: steps.exists() and steps.read_text().count("\n") > 2, what="three steps")
    (job,) = of_rule(cluster, "train")
    (shown,) = commands("squeue")
    assert f"{job} RUNNING rule_train" in cluster.ask("squeue", *shown)
    cluster.ask("sbatch", "--partition=urgent", "--cpus-per-task=16", "--output=/dev/null", "--wrap=true")
    until(lambda: cluster.restarts(job) == 1, what="preemption")
    assert workflow.wait() == 0, workflow.log()
    assert list(of_rule(cluster, "train")) == [job]  # queued again
    # no checkpoint is due: it is the one that SLURM's signal had training save
    resumed = json.loads((project / "reports/train.json").read_text())["resumed_from"]
    assert 2 < int(resumed.removeprefix("checkpoint-")) < STEPS
    # Snakemake's machine has recorded all of it, and finds nothing to do
    assert "up to date" in run(project, "dvc", "status")
    for arguments in (part, everything):
        again = cluster.snakemake(project, *arguments)
        assert again.wait() == 0 and nothing_to_do(again.log()), again.log()
    assert not list((project / ".quench/finished").iterdir())

    here = tiny.write_project(tmp_path / "here", yaml.safe_load((project / "params.yaml").read_text()))
    run_stages(here, (*STAGES[:6], "quantize@Q4_K_M"))
    assert json.loads((here / "reports/train.json").read_text())["resumed_from"] is None
    for folder in ("data/final", "data/tokens", "models/adapter", "models/merged"):
        assert tree_hash(here / folder) == tree_hash(project / folder), folder
    for file in ("data/clusters.jsonl", "data/changes.jsonl", "reports/data.json", "reports/data.html"):
        assert file_hash(here / file) == file_hash(project / file), file  # curated on the cluster
    for file in ("data/rejects.jsonl", "models/gguf/tiny-F16.gguf", "models/gguf/tiny-Q4_K_M.gguf"):
        assert file_hash(here / file) == file_hash(project / file), file


@pytest.mark.exhaustive
@pytest.mark.parametrize("trials", [1, 2])  # and two seeds of the finalist
def test_a_sweep_whose_trial_is_preempted(trials: int, cluster: Slurm, project: Path) -> None:
    """Each trial is a job; what SLURM queues again goes on, and the figures are those of one machine."""
    space = {"keys": {"train.learning_rate": [1e-4, 1e-3]}, "finalists": 1, "trials": trials, "seeds": 2}
    (project / "space.yaml").write_text(yaml.safe_dump(space))
    for folder in ("models/.sweep", "reports/sweep"):  # of the other parameter
        shutil.rmtree(project / folder, ignore_errors=True)
    (shown,) = commands("quench")
    often = ["--slurm-init-seconds-before-status-checks", "1"]
    running = cluster.start(project, [str(BIN / "quench"), *shown, *often])
    folder = project / "models/.sweep/space"

    def at_work() -> list[str]:
        """Trials that have made three steps; SLURM begins with either."""
        assert not running.ended(), running.log()
        journals = folder.glob("*/models/checkpoints/steps.jsonl")
        return [
            journal.relative_to(folder).parts[0]
            for journal in journals
            if journal.read_text().count("\n") > 2
        ]

    until(at_work, what="three steps")
    (trial,) = at_work()
    (job,) = of_rule(cluster, f"train_wildcards_{trial}")
    cluster.ask("sbatch", "--partition=urgent", "--cpus-per-task=16", "--output=/dev/null", "--wrap=true")
    until(lambda: cluster.restarts(job) == 1, what="preemption")
    assert running.wait() == 0, running.log()
    resumed = json.loads((folder / trial / "reports/train.json").read_text())["resumed_from"]
    assert 2 < int(resumed.removeprefix("checkpoint-")) < STEPS

    here = cluster.start(project, [str(BIN / "quench"), *shown[:3], "--name", "here"])
    assert here.wait() == 0, here.log()
    figures = []
    for name in ("space", "here"):
        report = json.loads((project / f"reports/sweep/{name}.json").read_text())
        rates = {
            trial["settings"]["train.learning_rate"]: (trial["state"], trial["value"])
            for trial in report["trials"]
        }
        figures.append((rates, [finalist["values"] for finalist in report["finalists"]], report["apply"]))
    assert figures[0] == figures[1]
    assert {state for state, _ in figures[0][0].values()} == {"complete"}
