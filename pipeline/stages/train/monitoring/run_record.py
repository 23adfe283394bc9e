"""The record of a run: the machine, the versions, the seeds, the command, the commit; for reports/train.json,
as it differs from run to run.

What the adapter's bytes depend on is another record, models/adapter/run.json
(`pipeline.stages.train.record`).
"""

import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from pipeline import __version__
from pipeline.core.hardware import hardware

GIT_SECONDS = 30


def run_record(
    root: Path, *, argv: Sequence[str], seeds: Mapping[str, int], hashes: Mapping[str, str]
) -> dict[str, Any]:
    """The record as JSON without host, user, absolute paths. `root` is the project, `argv` `sys.argv`."""
    return {
        "hardware": hardware(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions(),
        "seeds": dict(seeds),
        "command": command(argv),
        "git": git_state(root),
        "hashes": dict(hashes),
    }


def versions() -> dict[str, str | None]:
    """The version of Quench and of every library that it pins or asks for; None if not installed."""
    names = sorted(
        {
            re.split(r"[^\w.-]", line, maxsplit=1)[0]
            for line in requires("quench") or ()
            if "extra ==" not in line
        }
    )
    return {"quench": __version__} | {name: _version(name) for name in names}


def command(argv: Sequence[str]) -> list[str]:
    """The command line as a list; of absolute paths the last part, for they name users and machines."""
    program = Path(argv[0]).name
    start = ["python", "-m", "pipeline"] if program == "__main__.py" else [program]
    return start + [re.sub(r"(^|(?<==))/(?:.*/)?(?=[^/]*$)", "…/", argument) for argument in argv[1:]]


def git_state(root: Path) -> dict[str, Any] | None:
    """Commit of the project, and whether tracked files but dvc.lock differ; None outside a repository."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {
        "commit": commit,
        "dirty": bool(
            _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)dvc.lock")
        ),
    }


def _git(root: Path, *arguments: str) -> str | None:
    """What Git says, None where there is no Git, no repository or no commit."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
