"""Ctrl-C on `snakemake` or `dvc repro` in the middle of a training: the same command goes on and ends in the
bytes of a run that nobody stopped.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path

import pytest
from make import change_params, quench

from pipeline.core.hashing import tree_hash
from pipeline.core.places import PROJECT
from pipeline.stages.train.checkpoints import checkpoints_in, step_of

STEPS, SAVED = 8, 2
SECONDS = 600  # beside other tests a step takes seconds
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def project(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that is recorded up to its tokens. Read only: copy it to change it."""
    from dvc.repo import Repo

    root = tmp_path_factory.mktemp("stopped") / "project"
    assert quench("new", root).exit_code == 0
    for name in ("data", "models", "reports"):
        shutil.copytree(prepared / name, root / name, dirs_exist_ok=True)
    shutil.copy(prepared / "params.yaml", root)
    steps = {"max_steps": STEPS, "save_steps": SAVED, "eval_steps": STEPS}
    change_params(root, train=steps | {"lora_dropout": 0.1})
    with chdir(root), Repo(str(root)) as repo:
        repo.add("data/raw")
        for stage in ("base", "curate", "preprocess"):
            repo.commit(stage, force=True)
    return root


def started(root: Path, command: list[str]) -> subprocess.Popen[str]:
    """The command in a session of its own, as in a terminal; its output in a file beside the project."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    log = root.with_suffix(".log").open("a")
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(PROJECT)}
    return subprocess.Popen(
        command,
        cwd=root,
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )


def finished(root: Path, command: list[str]) -> str:
    """The adapter's hash once the command has ended well."""
    assert started(root, command).wait(SECONDS) == 0, root.with_suffix(".log").read_text()[-3000:]
    return tree_hash(root / "models/adapter")


@pytest.fixture(scope="module")
def undisturbed(project: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = Path(shutil.copytree(project, tmp_path_factory.mktemp("undisturbed") / "project"))
    return finished(root, ["snakemake", "train"])


@pytest.mark.parametrize(
    "command", [["snakemake", "train"], ["dvc", "repro", "train"]], ids=["snakemake", "dvc"]
)
def test_ctrl_c_in_a_training_costs_no_byte(
    command: list[str], project: Path, undisturbed: str, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(project, tmp_path / "project"))
    checkpoints, end = root / "models/checkpoints", time.monotonic() + SECONDS
    run = started(root, command)
    while not (checkpoints.is_dir() and any(step_of(one) >= SAVED for one in checkpoints_in(checkpoints))):
        assert run.poll() is None and time.monotonic() < end, root.with_suffix(".log").read_text()[-3000:]
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(SECONDS) != 0
    assert not (root / "models/adapter").exists()
    assert finished(root, command) == undisturbed
    assert json.loads((root / "reports/train.json").read_text())["resumed_from"]
