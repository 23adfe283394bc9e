"""Projects as users have them: a finished tiny one, made by `quench new`, its results recorded and committed;
and a clone of this repository.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import tiny
from make import change_params, ended
from make import quench as invoke
from typer.testing import Result

from pipeline.config.params import load_params
from pipeline.core.places import PROJECT
from pipeline.llamacpp.tools import DEFAULT_HOME
from pipeline.workflow.dvc_yaml import put_graph
from pipeline.workflow.state.settings import refresh_lock

RESULTS = ("data", "models", "reports")
BIN = Path(sys.executable).parent


def run(root: Path, *command: str) -> str:
    """Return the output of a command that must succeed, with this environment's programs on PATH."""
    path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    home = {"LLAMA_CPP_HOME": os.environ.get("LLAMA_CPP_HOME") or str(DEFAULT_HOME)}
    environment = os.environ | path | home
    done = ended(command, cwd=root, env=environment)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def quench(root: Path, *words: str) -> Result:
    """Run `quench` in this process, on the project `root`."""
    return invoke(*words, "--root", root)


def nothing_to_do(said: str) -> bool:
    """Return True if Snakemake says that there is nothing to do."""
    return "Nothing to be done" in said


def copy_tracked(root: Path) -> Path:
    """A copy of this working tree's tracked files; `root`."""
    for name in run(PROJECT, "git", "ls-files", "-z").split("\0"):
        if name and (PROJECT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PROJECT / name, root / name)
    return root


def clone(tiny_qwen2: Path, root: Path) -> Path:
    """The working tree in a repository of its own, with a tiny recipe and forty chats."""
    copy_tracked(root)
    params = tiny.tiny_params(tiny_qwen2)
    # more of them are more of the same
    params["quantize"]["levels"], params["evaluate"]["models"] = ["Q4_K_M"], ["F16", "Q4_K_M"]
    tiny.write_project(root, params)
    for words in ("git init --quiet", "dvc add --quiet data/raw", "git add --all"):
        run(root, *words.split())
    run(root, "git", "commit", "--quiet", "--message", "start")
    return root


def user_project(root: Path, finished: Path, **sections: Mapping[str, Any]) -> Path:
    """The project `root` with the results of `finished` and its settings, changed by `sections`."""
    from dvc.repo import Repo

    made = invoke("new", root)
    assert made.exit_code == 0 and "snakemake" in made.stdout, made.output
    for name in RESULTS:
        shutil.copytree(finished / name, root / name, dirs_exist_ok=True)
    shutil.copy(finished / "params.yaml", root)
    refresh_lock(change_params(root, **sections))
    put_graph(root, load_params(root / "params.yaml"))
    with chdir(root), Repo(str(root)) as repo:
        repo.add("data/raw")
        repo.commit(force=True)
    subprocess.run(["git", "add", "--all"], cwd=root, check=True)
    subprocess.run(["git", "commit", "--quiet", "--message", "finished"], cwd=root, check=True)
    return root
