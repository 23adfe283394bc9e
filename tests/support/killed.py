"""Runs that a real SIGKILL ends, in processes that are forked from one that has the libraries loaded.

Nothing of a run comes after it: no `finally`, no handler, no exception that a test could catch.
"""

import gc
import multiprocessing
import os
import pkgutil
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

SECONDS = 300  # that a run may take
# the server imports before a child could say so (`pipeline.models.runtime.silence_libraries`)
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    [
        "pipeline.stages.train.stage",
        "pipeline.stages.train.journal",
        "peft",
        "bitsandbytes",
        "datasets",
    ]
)


def kill_at(place: str, call: int, work: Callable[..., object], *given: Any, **more: Any) -> None:
    """Run `work(*given, **more)`, a function of a module, in a process group of its own; instead of the
    `call`th call of `place` (`module:function` or `module:Class.method`) the group gets SIGKILL.
    """
    with tempfile.NamedTemporaryFile("r", prefix="quench-killed-") as log:
        child = FORKED.Process(target=_die, args=(place, call, partial(work, *given, **more), log.name))
        child.start()
        child.join(SECONDS)
        if child.exitcode is None:
            os.killpg(child.pid or 0, signal.SIGKILL)
        assert child.exitcode == -signal.SIGKILL, f"exit code {child.exitcode}: {log.read()[-2000:]}"


def _die(place: str, call: int, work: Callable[[], object], log: str) -> None:
    os.setsid()
    on_one_core()
    written_to(Path(log))
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner = pkgutil.resolve_name(":".join([module, ".".join(owners)]) if owners else module)
    real, calls = getattr(owner, name), 0

    @wraps(real)
    def deadly(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.killpg(0, signal.SIGKILL)
        return real(*arguments, **more)

    setattr(owner, name, deadly)
    work()


def train_in_fork(root: Path) -> None:
    """Run `train` of the project, which must end well, in a fork: a process of its own takes seconds to load
    what training needs.
    """
    with tempfile.NamedTemporaryFile("r", prefix="quench-trained-") as log:
        child = FORKED.Process(target=_train, args=(root, log.name))
        child.start()
        child.join(SECONDS)
        assert child.exitcode == 0, log.read()[-2000:]


def _train(root: Path, log: str) -> None:
    from pipeline.__main__ import main

    on_one_core()
    written_to(Path(log))
    sys.exit(main(["train", "--root", str(root)]))


def on_one_core() -> None:
    """One thread, for beside other tests two would wait for each other, and the same for all runs, for sums
    depend on their number. What a fork has from before is not looked through for garbage again.
    """
    gc.freeze()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})


def written_to(log: Path) -> None:
    """Append all output of this process to the file `log`."""
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(opened, 1)
    os.dup2(opened, 2)
