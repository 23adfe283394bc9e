"""A finished tiny project as a user has it: made by `quench new`, its results recorded and committed."""

import shutil
import subprocess
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from pipeline.cli import app

RESULTS = ("data", "models", "reports")


def user_project(root: Path, finished: Path, **sections: Mapping[str, Any]) -> Path:
    """The project `root` with the results of `finished` and its settings, changed by `sections`."""
    from dvc.repo import Repo

    made = CliRunner().invoke(app, ["new", str(root)])
    assert made.exit_code == 0 and "snakemake" in made.stdout, made.output
    for name in RESULTS:
        shutil.copytree(finished / name, root / name, dirs_exist_ok=True)
    params = yaml.safe_load((finished / "params.yaml").read_text(encoding="utf-8"))
    for section, values in sections.items():
        params[section] |= values
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")
    with chdir(root), Repo(str(root)) as repo:
        repo.add("data/raw")
        repo.commit(force=True)
    subprocess.run(["git", "add", "--all"], cwd=root, check=True)
    subprocess.run(["git", "commit", "--quiet", "--message", "finished"], cwd=root, check=True)
    return root
