"""Where things are on the host, and what its other modules share."""

from __future__ import annotations  # an older Python is to say so, not to stumble

import fcntl
import hashlib
import json
from pathlib import Path
from typing import Any

MARK = "quench-remote: "
CHECKPOINTS = "models/checkpoints"  # in the project's folder
HOME = Path.home() / ".cache/quench/remote"
OBJECTS, INCOMING, RUNS = HOME / "objects", HOME / "incoming", HOME / "runs"
LOOK_SECONDS = 0.2
Files = dict[str, str]  # {path: sha256}, or {name: path}


def say(**message: Any) -> None:
    """Answer."""
    print(MARK + json.dumps(message), flush=True)


def alive(folder: Path) -> bool:
    """Whether somebody holds the run's lock."""
    try:
        with (folder / "alive").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def files_below(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(one for one in path.rglob("*") if one.is_file())
    return [path] if path.is_file() else []


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
