"""Run a stage of a sub-project as a process of its own, which ends with the one that started it.

    python -m pipeline.ways.child PARENT_PID pipeline train --root FOLDER

asks Linux to send SIGTERM once the parent is gone, however that ended (training then writes a checkpoint), and becomes `python -m pipeline …`.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.errors import ConfigError, DataError, GateError, MachineError, QuenchError, Stopped, ToolError
from pipeline.llamacpp.tools import PROJECT
from pipeline.workflow.settle import REUSE

PR_SET_PDEATHSIG = 1  # linux/prctl.h
ERRORS: dict[int, type[QuenchError]] = {kind.exit_code: kind for kind in (ConfigError, DataError, ToolError, GateError, MachineError)}


def run_stage(root: Path, *words: str) -> None:
    """Run `python -m pipeline WORDS` on the sub-project `root`. Raises what it ended with, in one sentence (its own stands above it)."""
    run_module("pipeline", *words, "--root", str(root), "--params", str(root / "params.yaml"), what=f"{words[0]} in {root.name}")


def run_module(module: str, *words: str, what: str) -> None:
    """Run `python -m MODULE WORDS` to its end; `what` names it in errors. Raises `QuenchError` of the child's exit code, `Stopped` after a signal."""
    environment = {name: value for name, value in os.environ.items() if name != REUSE}  # nothing of a sub-project is in DVC's cache
    command = [sys.executable, "-m", "pipeline.ways.child", str(os.getpid()), module, *words]
    # in a session of its own: Ctrl-C in a terminal reaches a whole group, and a training ends at once at its second signal
    process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        code = process.wait()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)  # what it started as well; a training writes its checkpoint
        process.wait()
        raise
    if code < 0 or code - 128 in (signal.SIGINT, signal.SIGTERM):
        raise Stopped(-code if code < 0 else code - 128)
    if code:
        kind = ERRORS.get(code, ToolError)
        raise kind(f"{what} failed (exit status {code}; its reason stands above): mend that, then run the same command again")


def become(parent: int, words: Sequence[str]) -> None:
    """Become `python -m WORDS`; end where the parent is gone already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(f"process {parent}, which wanted this stage, is gone")
    os.execv(sys.executable, [sys.executable, "-m", *words])  # noqa: S606 (no shell is wanted)


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
