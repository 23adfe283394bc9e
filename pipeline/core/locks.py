"""Locks that show which processes work in a project: a file in `.quench/` for each running stage and one for
the run, each with its process id.

The kernel releases a dead process's lock, so no lock ever has to be removed by hand.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pipeline.core.errors import DataError, MachineError, QuenchError
from pipeline.core.publish import is_scrap

RUN = "run"  # lock of Snakemake's main process
WORK = "work"  # lock that all processes share that write (`pipeline.workflow.state.cleanup`)
LOOK_SECONDS = 0.05  # pause between two looks at a lock; a reader keeps it for less
# A link could lead to another user's file, and opening a named pipe would block.
PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Held(Exception):
    """Another process has the lock; the message is its process id."""


def lock_file(name: str, root: Path) -> Path:
    """Return the path of the lock of a stage ("quantize@Q4_K_M") or of the run; creates its folder."""
    path = root / ".quench" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def take(path: Path) -> IO[str]:
    """Return the open file with the lock, which this process has until it closes the file or exits.

    Raises `Held` if another process has it, and `OSError` if it is not a regular file.
    """
    lock = _opened(path, "a+")
    try:
        _wait(lock, fcntl.LOCK_EX, time.monotonic() + 4 * LOOK_SECONDS)
    except TimeoutError:
        with lock:
            raise Held(_owner(lock)) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


@contextmanager
def locked(path: Path, kind: int, seconds: float | None = None) -> Iterator[IO[str]]:
    """Wait for the lock of `kind` (`fcntl.LOCK_EX`, or `LOCK_SH` to share it) on a file.

    The file is created if missing. The lock is released after the body, or when the process exits. Raises
    `TimeoutError`, an `OSError`, after `seconds`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = _opened(path, "a")
    except PermissionError:
        if kind != fcntl.LOCK_SH:
            raise
        lock = _opened(path, "r")
    with lock:
        if seconds is None:
            fcntl.flock(lock, kind)
        else:
            _wait(lock, kind, time.monotonic() + seconds)
        yield lock


def _wait(lock: IO[str], kind: int, until: float) -> None:
    while True:
        try:
            return fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds its lock", lock.name) from None
            time.sleep(LOOK_SECONDS)


def _opened(path: Path, mode: str) -> IO[str]:
    """Open a lock file. Raises `OSError` if it is a link or not a regular file."""
    lock = open(path, mode, opener=lambda name, flags: os.open(name, flags | PLAIN, 0o666))  # noqa: SIM115 (the caller closes it)
    if not stat.S_ISREG(os.fstat(lock.fileno()).st_mode):
        lock.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return lock


def holder(path: Path) -> str | None:
    """Return the id of the process that has this lock; None if it is free or missing."""
    try:
        lock = _opened(path, "r")
    except OSError:
        return None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _owner(lock)
    return None


def unusable(error: OSError, root: Path) -> MachineError:
    """Return the error for a lock of the project `root` that can't be opened or taken."""
    return MachineError(
        "Q-WORKFLOW-010",
        f"{error.filename or root.resolve()} can't be used as a lock ({error.strerror}): remove what "
        "has its name, free the disk, correct the folder's rights, or run in a copy of the project",
    )


def stages_at_work(root: Path) -> dict[str, str]:
    """Return {stage: process id} of the stages that run below `root` now."""
    locks = {
        path.stem: path for path in sorted((root / ".quench").glob("*.lock")) if path.stem not in (RUN, WORK)
    }
    return {stage: pid for stage, path in locks.items() if (pid := holder(path))}


def absent(path: Path, root: Path, stage: str | None = None) -> QuenchError:
    """Return the error for a missing artifact: `DataError` with the command of its `stage`, if known.

    It is a `MachineError` if that stage is running, because DVC and Snakemake remove the outputs of a stage
    before it writes them.
    """
    at_work = {
        name: pid
        for name, pid in stages_at_work(root).items()
        if stage in (None, name) and pid != str(os.getpid())
    }
    for name, pid in at_work.items():
        return MachineError(
            "Q-CORE-002",
            f"{path} is missing: process {pid} ({name}) is writing it; wait until it has finished",
        )
    command = f"quench run {stage}" if stage else "quench run"
    return DataError("Q-CORE-001", f"{path} is missing: run `{command}`, which makes it")


@contextmanager
def inputs_below(root: Path, inputs: Iterable[Path] = ()) -> Iterator[None]:
    """Turn a missing file below the folders of artifacts into the error of `absent` instead of a traceback.

    Do the same with any exception of a library if one of the `inputs` is missing by then: DVC may have
    removed it meanwhile.
    """
    present = [path for path in inputs if path.exists()]
    try:
        yield
    except QuenchError:
        raise
    except Exception as error:
        missing = [path for path in present if not path.exists()]
        if isinstance(error, FileNotFoundError):  # safetensors names the file only in its text.
            path = Path(os.fsdecode(error.filename or str(error).rpartition(": ")[2]))
            tops = [(root / top).absolute() for top in ("data", "models", "reports")]
            is_ours = any(path.absolute().is_relative_to(top) for top in tops)
            if is_ours and not any(is_scrap(part) for part in path.parts):
                missing.append(path)
        if not missing:
            raise
        raise absent(missing[-1], root) from error


def _owner(lock: IO[str]) -> str:
    """Return the holder's process id, which it may need a moment to write."""
    pid = ""
    for _ in range(20):
        lock.seek(0)
        pid = lock.read()
        if pid and Path(f"/proc/{pid}").exists():
            break
        time.sleep(LOOK_SECONDS)
    return pid or "unknown"
