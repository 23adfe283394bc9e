"""A sweep's trials as experiments of DVC: `dvc exp show` lists them, `dvc exp apply` puts their settings into
the workspace.

An experiment is a commit on the one that the sweep began at, named by a reference below `refs/exps`. It is
written by Git's plumbing with an index of its own, so neither the workspace, nor Git's index, nor the stash
is touched (`dvc exp save` would commit the workspace, and `dvc exp run --queue` would run things itself).
"""

import os
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from pipeline.commands.sweep.study import Sweep
from pipeline.config.overrides import override, place_of
from pipeline.core.publish import read_json

FOLDER = "sweeps"  # of an experiment's commit alone: the trial's figures, and a dvc.yaml that names them
WHO = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "quench sweep"), ("EMAIL", "quench@localhost"))
}


class GitFailed(Exception):
    """Git can't do it; the message is Git's own."""


def head(root: Path) -> str | None:
    """The commit that a project of DVC's is at; None where there is none, or no DVC."""
    if not (root / ".dvc").is_dir():
        return None
    try:
        return git(root, "rev-parse", "--verify", "HEAD^{commit}")
    except GitFailed:
        return None


def record(sweep: Sweep, report: Mapping[str, Any]) -> dict[str, Any]:
    """Write an experiment for every trial that has ended; {"recorded": how many, "sentence": in words}.

    Written again, a trial is the same commit, unless its figures grew. Nothing of it can fail a sweep.
    """
    inputs = sweep.folder / "inputs.json"
    baseline = read_json(inputs, "start the sweep again").get("git") if inputs.exists() else None
    ended = [one for one in report["trials"] if one["ended"]]
    if baseline is None:
        return {
            "recorded": 0,
            "sentence": "DVC has no experiments of it: the folder had no DVC, or no commit, when it began.",
        }
    try:
        for one in ended:
            write(sweep, report, one, baseline)
    except GitFailed as error:
        return {"recorded": 0, "sentence": f"DVC has no experiments of it, for Git failed: {error}"}
    return {
        "recorded": len(ended),
        "sentence": f"`dvc exp show` lists the trials, each as sweep-{report['name']}-NUMBER.",
    }


def write(sweep: Sweep, report: Mapping[str, Any], trial: Mapping[str, Any], baseline: str) -> None:
    """One trial's commit and reference. Raises `GitFailed`."""
    root, name = sweep.root, report["name"]
    prefix = git(root, "rev-parse", "--show-prefix")  # of the project in its repository
    files = {
        "params.yaml": changed(sweep.params, trial["settings"]),
        f"{FOLDER}/{name}/trial.json": orjson.dumps(figures(report, trial), option=orjson.OPT_INDENT_2),
        f"{FOLDER}/{name}/dvc.yaml": b"metrics:\n- trial.json\n",
    }
    when = f"{int(datetime.fromisoformat(trial['ended']).timestamp())} +0000"
    with TemporaryDirectory(dir=sweep.folder) as scratch:
        own = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        git(root, "read-tree", baseline, environment=own)
        for place, content in files.items():
            blob = git(root, "hash-object", "-w", "--stdin", given=content)
            entry = f"100644,{blob},{prefix}{place}"
            git(root, "update-index", "--add", "--cacheinfo", entry, environment=own)
        tree = git(root, "write-tree", environment=own)
    dates = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
    message = f"quench sweep {name}: trial {trial['trial']}"
    commit = git(root, "commit-tree", tree, "-p", baseline, "-m", message, environment=WHO | dates)
    reference = f"refs/exps/{baseline[:2]}/{baseline[2:]}/sweep-{name}-{trial['trial']}"
    git(root, "update-ref", reference, commit)


def changed(params: Path, settings: Mapping[str, Any]) -> bytes:
    """The text of `params` with these settings, its comments kept."""
    with TemporaryDirectory(dir=params.parent) as scratch:
        file = Path(scratch) / "params.yaml"
        file.write_bytes(params.read_bytes())
        override(file, {place_of(name): value for name, value in settings.items()})
        return file.read_bytes()


def figures(report: Mapping[str, Any], trial: Mapping[str, Any]) -> dict[str, Any]:
    """What `dvc exp show` has in its columns."""
    metric = report["space"]["metric"]
    found = {
        metric: trial["value"],
        "state": trial["state"],
        "steps": trial["steps"],
        "seconds": trial["seconds"],
    }
    means = (report["verdict"] or {}).get("means", {})
    if mean := means.get(str(trial["trial"])):
        found[f"{metric}_over_seeds"] = mean["mean"]
    return {key: value for key, value in found.items() if value is not None}


def git(root: Path, *words: str, given: bytes = b"", environment: Mapping[str, str] | None = None) -> str:
    """What a command of Git says, on one line. Raises `GitFailed`."""
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=root,
            input=given,
            capture_output=True,
            env=os.environ | dict(environment or {}),
            check=False,
        )
    except OSError as error:
        raise GitFailed(str(error)) from error
    if done.returncode:
        raise GitFailed(" ".join(done.stderr.decode(errors="replace").split())[:300])
    return done.stdout.decode(errors="replace").strip()
