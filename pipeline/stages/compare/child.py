"""Run a stage of a sub-project as a process of its own, which ends with this one: by SIGTERM, so that a training saves a checkpoint."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from pipeline.core.child import bound
from pipeline.core.errors import ConfigError, DataError, GateError, MachineError, QuenchError, Stopped, ToolError
from pipeline.core.owner import RUN
from pipeline.llamacpp.tools import PROJECT
from pipeline.workflow.settle import REUSE

# of the run: nothing of a sub-project is in DVC's cache, and its stages end with this process, which hears of the run's end
OF_THE_RUN = (REUSE, RUN, "DVC_STAGE")
ERRORS: dict[int, type[QuenchError]] = {kind.exit_code: kind for kind in (ConfigError, DataError, ToolError, GateError, MachineError)}


def run_stage(root: Path, *words: str) -> None:
    """Run `python -m pipeline WORDS` on the sub-project `root`. Raises what it ended with, in one sentence (its own stands above it)."""
    run_module("pipeline", *words, "--root", str(root), "--params", str(root / "params.yaml"), what=f"{words[0]} in {root.name}")


def run_module(module: str, *words: str, what: str) -> None:
    """Run `python -m MODULE WORDS` to its end; `what` names it in errors. Raises `QuenchError` of the child's exit code, `Stopped` after a signal."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_THE_RUN}
    command = bound([sys.executable, "-m", module, *words], signal.SIGTERM)
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
