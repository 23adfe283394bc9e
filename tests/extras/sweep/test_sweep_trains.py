"""A sweep of real trainings, by real Snakemake, killed in the middle.

The commands are those of docs/sweeps.md, in their order.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from make import change_params, ended
from user_project import BIN

from pipeline.core.places import PROJECT

PAGE = (PROJECT / "docs/sweeps.md").read_text(encoding="utf-8")
ENVIRONMENT = os.environ | {
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": str(PROJECT),
    "DVC_NO_ANALYTICS": "1",
}
# trial 0 is what params.yaml has; by this seed, trial 1 draws the other
SPACE: dict[str, Any] = {
    "keys": {"train.learning_rate": [1.0e-3, 1.0e-7]},
    "trials": 2,
    "finalists": 1,
    "seeds": 2,
    "startup": 1,
    "sampler": "random",
    "seed": 5,
}
STEPS, EVALUATED, SAVED = 40, 20, 5  # far apart, so that the kill comes before the first evaluation


def blocks(kind: str) -> list[str]:
    return [text.partition("```")[0] for text in PAGE.split(f"```{kind}\n")[1:]]


def run(root: Path, command: str) -> str:
    words = shlex.split(command, comments=True)
    words = [sys.executable, "-m", "pipeline.cli", *words[1:]] if words[0] == "quench" else words
    done = ended(words, cwd=root, env=ENVIRONMENT)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def project(prepared: Path, root: Path) -> Path:
    """A copy of a prepared project that keeps checkpoints and evaluates often, with Git and DVC."""
    shutil.copytree(prepared, root)
    change_params(root, train={"max_steps": STEPS, "save_steps": SAVED, "eval_steps": EVALUATED})
    (root / "space.yaml").write_text(yaml.safe_dump(SPACE), encoding="utf-8")
    (root / ".gitignore").write_text("/data\n/models\n/reports\n/.quench\n", encoding="utf-8")
    (root / "dvc.yaml").write_text(
        "stages:\n  train:\n    cmd: python -m pipeline train\n    params: [train]\n", encoding="utf-8"
    )
    shutil.copytree(PROJECT / "profiles/default", root / "profiles/default")
    for command in ("git init -q", "dvc init -q", "git add -A", "git commit -qm start"):
        run(root, command)
    return root


def kill_while(root: Path, command: str, job: str) -> None:
    """Start a command and kill -9 it when `job` has a checkpoint."""
    words = [sys.executable, "-m", "pipeline.cli", *shlex.split(command, comments=True)[1:]]
    said = root.parent / "quench.log"
    with said.open("wb") as log:
        process = subprocess.Popen(words, cwd=root, env=ENVIRONMENT, stdout=log, stderr=log)
    checkpoints = root / "models/.sweep/space" / job / "models/checkpoints"
    deadline = time.monotonic() + 300
    while not list(checkpoints.glob("checkpoint-*")):
        assert process.poll() is None and time.monotonic() < deadline, (
            root.parent / "quench.log"
        ).read_text()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_a_killed_sweep_goes_on(prepared: Path, tmp_path: Path) -> None:
    root = project(prepared, tmp_path / "project")
    sweep, sweep_json = blocks("sh")[0].splitlines()
    folder = root / "models/.sweep/space"

    kill_while(root, sweep, "trial-1")
    run(root, sweep)
    said = (folder / "trial-1/train.log").read_text()
    assert "resuming from" in said
    begun = [line for line in (folder / "journal.log").read_text().splitlines() if '"op_code":4' in line]
    assert len(begun) == 2 + 2  # each trial once, and two seeds
    assert not list(folder.glob("*/models"))

    dates = [path.stat().st_mtime_ns for path in sorted(folder.glob("*/train.log"))]
    report = json.loads(run(root, sweep_json))
    assert [path.stat().st_mtime_ns for path in sorted(folder.glob("*/train.log"))] == dates
    rates = [one["settings"]["train.learning_rate"] for one in report["trials"]]
    assert rates == [1.0e-3, 1.0e-7]
    assert [one["state"] for one in report["trials"]] == ["complete", "pruned"]
    assert (
        list(report["trials"][1]["evaluations"]) == [str(EVALUATED)] and report["trials"][1]["steps"] < STEPS
    )
    assert report["verdict"]["winner"] == report["finalists"][0]["trial"]
    assert len(report["finalists"][0]["values"]) == 2

    key, _, value = report["apply"].split()[-1].partition("=")
    assert (key, float(value)) == ("train.learning_rate", rates[report["verdict"]["winner"]])
    assert run(root, "git status --porcelain").splitlines() == []
