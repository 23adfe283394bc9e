"""A project of toy stages (`tests/toy`) that take no time, run by the real workflow code."""

import re
import shutil
from pathlib import Path

from dvc.repo import Repo
from make import full_params, ran

from pipeline.core.places import PROJECT

IGNORED = [
    *("/.snakemake/", "/.quench/", "/counter", "/at-work-*", "/hold", "/step", "/tool", "/together"),
    *("/logs", "/models", "/reports", "/data/final", "/data/raw", "/data/rejects.jsonl", "/data/spare"),
]


def write_toy(root: Path) -> Path:
    """Make the toy project `root`, in Git and DVC, with raw data and nothing built; `root`."""
    shutil.copytree(PROJECT / "tests/toy", root, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "params.yaml").write_text(re.sub(r"base-Q\w+, |, base-Q\w+", "", full_params()))
    shutil.copytree(PROJECT / "profiles", root / "profiles")
    (root / "data/raw").mkdir(parents=True)
    (root / "data/raw/a.jsonl").write_text("rows\n")
    for stage in ("base", "curate", "train"):
        (root / f"{stage}.txt").write_text(f"code of {stage}\n")
    (root / ".gitignore").write_text("\n".join(IGNORED))
    ran(["git", "init", "--quiet"], cwd=root)
    Repo.init(str(root)).close()
    shutil.copy(PROJECT / ".dvcignore", root)
    return root
