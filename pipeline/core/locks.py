"""Which processes work in a project: a lock file for each running stage and for the run, in `.quench/`, each
with its process id.

The kernel gives a dead process's lock back, so no lock ever has to be removed by hand.
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

RUN, WORK = (
    "run",
    "work",
)  # of Snakemake's main process; shared by all that write (`pipeline.workflow.cleanup`)
LOOK_SECONDS = 0.05  # between two looks at a lock; a reader holds it for less
# a link leads to another user's file, a named pipe is waited for
PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Held(Exception):
    """Another process has the lock; the message is its process id."""


def lock_file(name: str, root: Path) -> Path:
    """The lock of a stage ("quantize@Q4_K_M") or of the run, in a folder that is made for it."""
    path = root / ".quench" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def take(path: Path) -> IO[str]:
    """The open file whose lock is now this process's, until it closes it or ends. Raises `Held`, and
    `OSError` if it is not a regular file.
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
    """Wait for the lock of `kind` (`fcntl.LOCK_EX`, or `LOCK_SH` to share it) on a file that is made for it;
    it ends with the body, or the process. After `seconds` raises `TimeoutError`, an `OSError`.
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
    """Open a lock file, which must be a regular one and no link."""
    lock = open(path, mode, opener=lambda name, flags: os.open(name, flags | PLAIN, 0o666))  # noqa: SIM115 (the caller closes it)
    if not stat.S_ISREG(os.fstat(lock.fileno()).st_mode):
        lock.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return lock


def holder(path: Path) -> str | None:
    """The id of the process that has this lock; None if it is free, or not there."""
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
    """What to raise where a lock of the project `root` can't be opened or taken."""
    return MachineError(
        "Q-WORKFLOW-010",
        f"{error.filename or root.resolve()} can't be used as a lock ({error.strerror}): remove what "
        "has its name, free the disk, correct the folder's rights, or run in a copy of the project",
    )


def stages_at_work(root: Path) -> dict[str, str]:
    """{stage: process id} of the stages that run below `root` now."""
    locks = {
        path.stem: path for path in sorted((root / ".quench").glob("*.lock")) if path.stem not in (RUN, WORK)
    }
    return {stage: pid for stage, path in locks.items() if (pid := holder(path))}


def absent(path: Path, root: Path, stage: str | None = None) -> QuenchError:
    """What to raise for a missing artifact: `DataError` with what makes it (`stage`, if it is known).

    `MachineError` if that is at work on it: DVC and Snakemake remove what a stage is about to write.
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
    return DataError(
        "Q-CORE-001",
        f"{path} is missing: run `{f'python -m pipeline {stage}' if stage else 'snakemake'}`, which makes it",
    )


@contextmanager
def inputs_below(root: Path, inputs: Iterable[Path] = ()) -> Iterator[None]:
    """A missing file below the folders of artifacts is a sentence (`absent`) and no traceback; so is whatever
    a library raises if one of the `inputs` is gone by then, which DVC may have removed meanwhile.
    """
    present = [path for path in inputs if path.exists()]
    try:
        yield
    except QuenchError:
        raise
    except Exception as error:
        missing = [path for path in present if not path.exists()]
        if isinstance(error, FileNotFoundError):  # safetensors names the file in its text alone
            path = Path(os.fsdecode(error.filename or str(error).rpartition(": ")[2]))
            tops = [(root / top).absolute() for top in ("data", "models", "reports")]
            is_ours = any(path.absolute().is_relative_to(top) for top in tops)
            missing += [path] if is_ours and not any(is_scrap(part) for part in path.parts) else []
        if not missing:
            raise
        raise absent(missing[-1], root) from error


def _owner(lock: IO[str]) -> str:
    """The holder's process id; it may need a moment to write it."""
    pid = ""
    for _ in range(20):
        lock.seek(0)
        if (pid := lock.read()) and Path(f"/proc/{pid}").exists():
            break
        time.sleep(LOOK_SECONDS)
    return pid or "unknown"
