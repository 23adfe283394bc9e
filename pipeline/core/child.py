"""A child process that ends when its parent does, however the parent ended. Run as a script, this becomes the
child's command.

    python -I -S child.py PARENT_PID SIGNAL COMMAND ...

asks Linux to send SIGNAL when the parent is gone, and becomes COMMAND. (It imports nothing of the project: -I
hides the project's folder.)
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def bound(command: Sequence[str], number: int = signal.SIGKILL) -> list[str]:
    """The command line that runs `command` as a child of this process, which gets the signal `number` when
    this process is gone.
    """
    return [
        sys.executable,
        "-I",
        "-S",
        str(Path(__file__).resolve()),
        str(os.getpid()),
        str(int(number)),
        *command,
    ]


def become(parent: int, number: int, command: list[str]) -> None:
    """Become `command`; end if the parent is gone already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        sys.exit(f"process {parent}, which wanted {command[0]}, is gone")
    os.execvp(command[0], command)  # noqa: S606 (no shell is wanted)


if __name__ == "__main__":
    become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
