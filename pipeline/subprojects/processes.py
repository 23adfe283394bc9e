"""The stages and modules that another stage runs, each as a process of its own that ends with it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pipeline.core.child import bound
from pipeline.core.errors import (
    ConfigError,
    DataError,
    GateError,
    MachineError,
    QuenchError,
    Stopped,
    ToolError,
)
from pipeline.core.owner import DVC, RUN
from pipeline.core.places import PROJECT

# of the run: nothing of a sub-project is in DVC's cache, and its stages end with this process, which hears of
# the run's end. The first is `pipeline.workflow.settle.REUSE`; an import would put all code of the workflow
# into the keys of what is trained.
OF_THE_RUN = ("QUENCH_REUSE", RUN, DVC)
ERRORS: dict[int, type[QuenchError]] = {
    kind.exit_code: kind for kind in (ConfigError, DataError, ToolError, GateError, MachineError)
}


def run_stage(project: Path, *words: str) -> None:
    """Run `python -m pipeline WORDS` on a sub-project. Raises what it ended with, in one sentence (its own
    stands above it).
    """
    place = ("--root", str(project), "--params", str(project / "params.yaml"))
    run_module("pipeline", *words, *place, what=f"{words[0]} in {project.name}")


def run_module(module: str, *words: str, what: str) -> None:
    """Run `python -m MODULE WORDS` to its end; `what` names it in errors. Raises `QuenchError` of the child's
    exit code, `Stopped` after a signal.
    """
    with started(module, *words) as process:
        code = process.wait()
    if stopped := signal_of(code):
        raise Stopped(stopped)
    if code:
        raise ERRORS.get(code, ToolError)(
            "Q-COMPARE-007",
            f"{what} failed (exit status {code}; its reason stands above): fix that, then run the same "
            "command again",
        )


@contextmanager
def started(module: str, *words: str, output: IO[bytes] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m MODULE WORDS` at work; it writes to `output` if that is given. If the body raises, it is
    told to end, and waited for.
    """
    process = subprocess.Popen(
        # with SIGTERM a training saves a checkpoint
        bound([sys.executable, "-m", module, *words], signal.SIGTERM),
        cwd=PROJECT,
        env={name: value for name, value in os.environ.items() if name not in OF_THE_RUN},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        # Ctrl-C in a terminal reaches an entire group, and a training ends at once at its second signal
        start_new_session=True,
    )
    try:
        yield process
    except BaseException:
        end(process)
        raise


def end(process: subprocess.Popen[bytes]) -> None:
    """Tell a process and what it started to end, and wait: a training writes its checkpoint."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def signal_of(code: int) -> int | None:
    """The signal that ended a process with this exit status, None if none did."""
    return -code if code < 0 else code - 128 if code - 128 in (signal.SIGINT, signal.SIGTERM) else None
