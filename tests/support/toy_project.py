"""A project of toy stages (`tests/toy`) that take no time, run by the real workflow code."""

import atexit
import hashlib
import os
import re
import shutil
import subprocess
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any

from dvc.repo import Repo
from forked import Forked
from make import full_params, ran
from user_project import nothing_to_do

from pipeline.core.places import PROJECT
from pipeline.workflow.state.dvc_project import place
from pipeline.workflow.state.lockfile import recorded_stages

ALL = ["base", "curate", "train", "merge", "quantize", "quantize", "report"]  # its stages
EMPTIES = ["data/rejects.jsonl", "data/spare"]  # outputs of its curation

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


@cache
def forked() -> Forked:
    """Return the server of forked processes of this test process."""
    server = Forked()
    atexit.register(server.close)
    return server


class Toy:
    """A toy project and the two tools on it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return forked().run("snakemake", *arguments, cwd=self.root)

    def build(self) -> None:
        done = self.snakemake()
        assert done.returncode == 0, done.stderr

    def plan(self, *targets: str) -> list[str]:
        """Return the rules that `snakemake -n` would run, sorted, each as often as it would run."""
        done = self.snakemake("-n", *targets)
        assert done.returncode == 0, done.stderr
        counts = dict(re.findall(r"^(\w+) +(\d+)\b", done.stdout, re.M))
        assert counts or nothing_to_do(done.stdout + done.stderr)
        return sorted(
            name for name, count in counts.items() if name not in ("all", "total") for _ in range(int(count))
        )

    def repro(self) -> list[str]:
        """`dvc repro`; gives the stages that it ran."""
        return self._ran(lambda: self._repo(lambda repo: repo.reproduce()))

    def status(self) -> dict[str, Any]:
        return self._repo(lambda repo: repo.status())

    def commit(self, stage: str) -> None:
        self._repo(lambda repo: repo.commit(stage, force=True))

    def ran(self) -> list[str]:
        counter = self.root / "counter"
        return [line.partition("@")[0] for line in counter.read_text().split()] if counter.exists() else []

    def change(self, old: str, new: str) -> None:
        """Change one line of params.yaml."""
        text = (self.root / "params.yaml").read_text()
        assert text.count(old) == 1
        (self.root / "params.yaml").write_text(text.replace(old, new))

    def put(self, name: str, text: str) -> None:
        """Write a file anew, also one that DVC made read-only."""
        if (self.root / name).exists():
            (self.root / name).chmod(0o644)
        (self.root / name).write_text(text)

    def damage(self, name: str) -> None:
        """Give a file other bytes under the same date and size, as a failing disk does."""
        file = self.root / name
        state = file.stat()
        file.chmod(0o644)
        file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))

    def lose_for_good(self, name: str) -> None:
        """Remove an output, and what DVC's cache has of it."""
        self.object(name).unlink()
        lose(self.root / name)

    def bytes(self) -> dict[str, str]:
        """Hash of every artifact's file."""
        files = [
            path
            for folder in ("models", "reports", "data/final")
            for path in (self.root / folder).rglob("*")
            if path.is_file()
        ]
        return {
            str(path.relative_to(self.root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
            if path.name[0] != "."
        }

    def empties(self) -> list[str]:
        """Those of `EMPTIES` that are there, and empty but for Snakemake's stamp."""
        file, folder = (self.root / name for name in EMPTIES)
        found = [
            file.is_file() and file.stat().st_size == 0,
            folder.is_dir() and not list(folder.glob("[!.]*")),
        ]
        return [name for name, is_there in zip(EMPTIES, found, strict=True) if is_there]

    def object(self, path: str) -> Path:
        """Return the path of an output in DVC's cache."""
        outs = [out for stage in recorded_stages(self.root).values() for out in stage["outs"]]
        md5 = next(out["md5"] for out in outs if out["path"] == path)
        return place(self.root / ".dvc/cache/files/md5", md5)

    def agree(self) -> None:
        """Neither tool has anything to do, and neither did anything to find that out."""
        before = self.ran()
        assert self.status() == {}
        assert self.plan() == []
        assert self.ran() == before

    def _ran(self, action: Any) -> list[str]:
        before = len(self.ran())
        action()
        return self.ran()[before:]

    def _repo(self, action: Any) -> Any:
        with chdir(self.root), Repo(str(self.root)) as repo:
            return action(repo)


def lose(path: Path) -> None:
    """Remove a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True)
