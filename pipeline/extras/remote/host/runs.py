"""Runs on the host: start, look, stop, remove. `main` also calls the functions of `files`."""

# An older Python is to report its version instead of failing with a syntax error.
from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.extras.remote.host.files import (
    CHECKPOINTS,
    HOME,
    INCOMING,
    LOOK_SECONDS,
    OBJECTS,
    RUNS,
    Files,
    alive,
    files_below,
    follow,
    read,
    sha256,
    snapshot,
    wanted,
)
from pipeline.extras.ssh_answers import say

PATIENCE = 600.0  # seconds for a checkpoint of a training that was asked to stop
# program of train's parent process, which records train's exit code
WATCH = """
import signal, subprocess, sys
from pathlib import Path
child = subprocess.Popen(sys.argv[2:], close_fds=False)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
folder = Path(sys.argv[1])
(folder / "pid.writing").write_text(str(child.pid))
(folder / "pid.writing").rename(folder / "pid")
code = child.wait()
(folder / "exit.writing").write_text(str(code))
(folder / "exit.writing").rename(folder / "exit")
"""


def check(names: list[str]) -> None:
    """Report what is installed here: Python, packages by name, rsync."""
    versions: dict[str, str | None] = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    python = ".".join(map(str, sys.version_info[:3]))
    say(python=python, versions=versions, rsync=bool(shutil.which("rsync")))


def start(run: str, attempt: str, inputs: Files, state: Files, words: list[str]) -> None:
    """Make the folder of `run` from objects ({path: sha256}; `state` contains the files that train writes to)
    and start train in it, detached. Do nothing if it runs, or if this attempt was started before.
    """
    folder = RUNS / run
    with (RUNS / (run + ".starting")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if alive(folder) or read(folder / "attempt") == attempt:
            say(damaged=[])
            return
        damaged = [name for name in {*inputs.values(), *state.values()} if not is_intact(OBJECTS / name)]
        if damaged:
            say(damaged=damaged)
            return
        # including those of the attempts before
        sent = {*sent_for(folder), *inputs.values(), *state.values()}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        (folder / "sent").write_text("\n".join(sorted(sent)))
        for place, name in inputs.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            os.link(OBJECTS / name, folder / place)
        for place, name in state.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(OBJECTS / name, folder / place)
        (folder / "out").mkdir()
        launch(folder, words)
        (folder / "attempt").write_text(attempt)
    say(damaged=[])


def sent_for(folder: Path) -> list[str]:
    """Return the names of the objects that a run was started from."""
    return read(folder / "sent").split()


def launch(folder: Path, words: list[str]) -> None:
    """Start train below its watcher, in a session of its own. Both hold the lock `alive` until they exit."""
    variables = {"PYTHONPATH": str(folder / "code"), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", WATCH, str(folder), sys.executable, "-m", "pipeline", *words]
    with (folder / "alive").open("w") as lock, (folder / "log").open("ab") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.Popen(
            command,
            cwd=folder / "project",
            env={**os.environ, **variables, "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock.fileno()],
        )


def is_intact(path: Path) -> bool:
    """Return True if a file has the bytes that its name specifies. Otherwise it is removed."""
    if path.exists() and sha256(path) == path.name:
        return True
    path.unlink(missing_ok=True)
    return False


def look(run: str) -> None:
    """Report the state of `run`: running, ended (with its exit code), dead (without one) or none. Report the
    step of its newest checkpoint too (-1: there is none).
    """
    say(**state_of(RUNS / run))


def state_of(folder: Path) -> dict[str, Any]:
    newest = {"step": newest_step(folder / "project" / CHECKPOINTS)}
    if alive(folder):
        return {"state": "running", **newest}
    code = read(folder / "exit")
    if code:
        return {"state": "ended", "code": int(code), **newest}
    return {"state": "dead" if (folder / "attempt").exists() else "none", **newest}


def newest_step(checkpoints: Path) -> int:
    complete = [
        path.parent.name.rpartition("-")[2] for path in checkpoints.glob("checkpoint-*/complete.json")
    ]
    return max((int(step) for step in complete if step.isdigit()), default=-1)


def runs() -> None:
    """Report the state of every run here, and the disk space of all."""
    names = sorted(path.name for path in RUNS.glob("*") if path.is_dir())
    # Many files are links.
    inodes = {file.stat().st_ino: file.stat().st_blocks * 512 for file in files_below(HOME)}
    say(
        runs={name: {**state_of(RUNS / name), "line": last_line(RUNS / name / "log")} for name in names},
        bytes=sum(inodes.values()),
    )


def last_line(path: Path) -> str:
    lines = read(path).strip().splitlines()
    return lines[-1] if lines else ""


def stop(run: str) -> None:
    """Stop a run, as Ctrl-C does, and wait for its exit."""
    folder = RUNS / run
    until = time.monotonic() + PATIENCE
    if alive(folder) and read(folder / "pid"):
        os.kill(int(read(folder / "pid")), signal.SIGTERM)
    while alive(folder) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    look(run)


def clean(run: str | None, keep: bool) -> None:
    """Remove the folder of `run` and the files that were sent for it, unless `keep` is set or another run
    uses them. None stands for all runs that are not running, and for all other sent files. Then remove empty
    folders.
    """
    left: list[str] = []
    sent: set[Path] = set()
    for folder in [RUNS / run] if run else [path for path in RUNS.glob("*") if path.is_dir()]:
        if alive(folder):
            left.append(folder.name)
            continue
        sent |= {OBJECTS / name for name in sent_for(folder)}
        shutil.rmtree(folder, ignore_errors=True)
        (RUNS / (folder.name + ".starting")).unlink(missing_ok=True)
    if not keep:
        for file in sent if run else [*OBJECTS.glob("*"), *INCOMING.glob("*")]:
            if file.exists() and file.stat().st_nlink == 1:
                file.unlink()
    for folder in (OBJECTS, INCOMING, RUNS, HOME, HOME.parent):
        with suppress(OSError):  # The folder may not be empty.
            folder.rmdir()
    say(running=left)


CALLS = {call.__name__: call for call in (check, wanted, start, look, follow, snapshot, runs, stop, clean)}


def main(name: str, /, **given: Any) -> None:
    """Call one of the functions."""
    os.umask(0o077)
    try:
        CALLS[name](**given)
    except OSError as error:
        say(error=f"{type(error).__name__}: {error}")
