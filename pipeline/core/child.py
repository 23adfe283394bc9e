"""A child process that exits when its parent does, for whatever reason the parent exited.

Run as a script, this file becomes the child's command:

    python -I -S child.py PARENT_PID SIGNAL[,RESOURCE=MOST…] COMMAND ...

It asks Linux to send SIGNAL when the parent has exited, sets the limits (numbers of `resource`), and becomes
COMMAND. It imports nothing of the project, because -I hides the project's folder.
"""

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def bound(
    command: Sequence[str], number: int = signal.SIGKILL, limits: Mapping[int, int] | None = None
) -> list[str]:
    """Return the command line that runs `command` as a child of this process.

    The child receives the signal `number` when this process exits. Its resources are limited to `limits` (by
    `resource.RLIMIT_…`), or to the limit in force if that is lower.
    """
    return [
        sys.executable,
        "-I",
        "-S",
        str(Path(__file__).resolve()),
        str(os.getpid()),
        ",".join([str(int(number)), *(f"{kind}={most}" for kind, most in (limits or {}).items())]),
        *command,
    ]


def limit(limits: Mapping[int, int]) -> None:
    """Set limits of this process, unless they are lower already."""
    for kind, most in limits.items():
        hard = resource.getrlimit(kind)[1]
        lower = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(ValueError):  # macOS doesn't limit the address space.
            resource.setrlimit(kind, (lower, hard))


def become(parent: int, number: int, command: list[str]) -> None:
    """Become `command`. Exit if the parent has exited already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        sys.exit(f"process {parent}, which wanted {command[0]}, is gone")
    os.execvp(command[0], command)  # noqa: S606 (no shell is wanted)


if __name__ == "__main__":
    signal_number, *pairs = sys.argv[2].split(",")
    limit({int(kind): int(most) for kind, most in (pair.split("=") for pair in pairs)})
    become(int(sys.argv[1]), int(signal_number), sys.argv[3:])
