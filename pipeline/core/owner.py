"""The owner of a stage: the Snakemake or DVC process that runs it.

A stage stops when its owner has exited, for whatever reason, because a job must not keep working next to the
next run.

A stage that a user runs by hand, under nohup for example, has no owner.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from pipeline.core.interruption import Interruption

RUN = "QUENCH_RUN"  # MACHINE:PID of the Snakemake that started the stage (`mark_run`)
DVC = "DVC_STAGE"  # DVC passes a stage's name in this variable
LOOK_SECONDS = 0.5


def mark_run() -> None:
    """Make the jobs of this process, which inherit its environment, stop when it exits."""
    os.environ[RUN] = f"{pid_scope()}:{os.getpid()}"


def pid_scope() -> str:
    """Return the scope of unique process ids: this machine since its start and, if any, the container.

    The host's name is not enough: the nodes of some clusters are all called localhost, and a container may
    have its host's name.
    """
    names = [socket.gethostname()]
    with suppress(OSError):  # another system than Linux
        names += [
            Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
            str(Path("/proc/self/ns/pid").readlink()),
        ]
    return "/".join(names)


def end_with_owner(stage: str) -> None:
    """Send SIGTERM to this process when the run that started it has exited.

    A training then saves a checkpoint.
    """
    for pid, owner in _owners():
        threading.Thread(target=_end_after, args=(stage, pid, owner), daemon=True).start()


def _owners() -> Iterator[tuple[int, Any]]:
    """Yield the Snakemake and the DVC that run this process.

    Each is (process id, psutil's process or None if it has exited).
    """
    where, _, pid = os.environ.get(RUN, "").rpartition(":")
    if pid and where == pid_scope():
        yield int(pid), psutil.Process(int(pid)) if psutil.pid_exists(int(pid)) else None
    if DVC in os.environ:
        yield from [
            (process.pid, process) for process in psutil.Process().parents() if not _is_of_dvc(process)
        ][:1]  # the nearest one


def _is_of_dvc(process: Any) -> bool:
    """Return True if DVC started the process: DVC sets its variable for its children, not for itself."""
    try:
        return DVC in process.environ()
    except psutil.Error:  # another user's process
        return False


def _end_after(stage: str, pid: int, owner: Any) -> None:
    with suppress(psutil.Error):
        while owner is not None and owner.is_running() and owner.status() != psutil.STATUS_ZOMBIE:
            time.sleep(LOOK_SECONDS)
    if Interruption.stopping:  # It was signalled before, and a second signal would cut its checkpoint short.
        return
    with suppress(OSError):
        print(
            f"{stage}: process {pid}, which ran this stage, is gone, so it ends too: run the same command "
            "again",
            file=sys.stderr,
            flush=True,
        )
    os.kill(os.getpid(), signal.SIGTERM)
