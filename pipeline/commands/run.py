"""Run Snakemake for `quench run`, and exit as its stages exited.

Snakemake is a child in the same process group, so the terminal's Ctrl-C and Ctrl-Z reach it and its stages
directly. A signal that was sent only to this process is passed on to the running stages, because Snakemake
would only wait for their end.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import psutil

from pipeline.commands.clean import CACHE, disk_line
from pipeline.commands.own_code import untracked_sentences
from pipeline.config.params import Params, load_params
from pipeline.core.child import bound
from pipeline.core.errors import Stopped
from pipeline.core.locks import stages_at_work
from pipeline.workflow.prepare import is_dry_run
from pipeline.workflow.project import is_project, need_no_namesake

LOOK_SECONDS = 0.1  # seconds between two looks for stages that a signal is to be passed on to
REMEDY = "the same command goes on"


@dataclass
class Heard:
    """Signals that arrived, and those of them that the process group did not get."""

    all: list[int] = field(default_factory=list)
    alone: list[int] = field(default_factory=list)

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self.all.append(number)
        if number != signal.SIGINT or not in_foreground():
            self.alone.append(number)


def main(root: Path, words: Sequence[str]) -> int:
    """Run Snakemake with `words` in the folder `root`. Return its exit code, which is that of a failed stage.
    Raises `Stopped` if a signal ended it, and `ConfigError` if the folder hides Quench's package.
    """
    need_no_namesake(root)
    # Snakemake is killed with this process. Its stages notice that, save their work and exit.
    # A checkout's own modules are wanted, a project's (a yaml.py) would hide a package that Snakemake needs.
    isolated = ["-P"] if is_project(root) else []
    command = bound([sys.executable, *isolated, "-m", "snakemake", *words], signal.SIGKILL)
    with listening() as heard:
        code = wait(subprocess.Popen(command, cwd=root), heard, root)
    if code and heard.all:
        raise Stopped(heard.all[0], REMEDY)
    if code < 0:
        raise Stopped(-code, REMEDY)
    if code or is_dry_run([*words]):
        return code
    file = root / "params.yaml"
    for sentence in untracked_sentences(load_params(file), root) if file.exists() else []:
        print(f"run: {sentence}", file=sys.stderr)
    if (root / CACHE).is_dir():
        print(disk_line(root), file=sys.stderr)
    return code


def view_options(words: Sequence[str], *, as_json: bool, verbose: bool) -> list[str]:
    """Return Snakemake's options for the view of a run with `words`, unless they name a logger themselves."""
    options = ["--verbose"] if verbose else []
    if not any(re.fullmatch(r"--logger(=.*)?", word) for word in words):
        # Projects that an earlier version made have profiles that don't name it.
        options.append("--logger=quench")
    return [*options, "--logger-quench-form=json"] if as_json else options


def preview(root: Path, params: Params, words: Sequence[str], *, as_json: bool) -> None:
    """Print what `quench run` would run with the settings `params` and Snakemake's `words`; writes nothing.

    Raises `ConfigError` for a stage that these settings don't have.
    """
    from pipeline.commands.targets import files_of, targets_in
    from pipeline.workflow.view import preview as view
    from pipeline.workflow.view.events import as_line

    targets = targets_in(words)
    for target in targets:
        next(files_of(target, params, root))
    if "all" in targets:
        targets = []
    plan = view.preview(root, params, targets)
    if as_json:
        print(as_line(plan))
    else:
        view.print_plan(plan)


@contextmanager
def listening() -> Iterator[Heard]:
    """Record SIGINT and SIGTERM instead of exiting. An ignored signal, in a script, stays ignored."""
    heard = Heard()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, heard.note)
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(snakemake: "subprocess.Popen[bytes]", heard: Heard, root: Path) -> int:
    """Wait until Snakemake has exited, pass on signals meanwhile, and return its exit code."""
    signals_sent: dict[int, int] = {}  # {process id: number of signals that were passed on to it}
    while True:
        with suppress(subprocess.TimeoutExpired):
            return snakemake.wait(LOOK_SECONDS)
        if not heard.alone:
            continue
        # After SIGTERM Snakemake starts no further job.
        receivers = dict.fromkeys(stages_below(snakemake.pid, root), heard.alone[-1])
        for process, number in {snakemake.pid: signal.SIGTERM, **receivers}.items():
            # A stage that starts late gets one signal, because a second one would end it without a
            # checkpoint.
            if signals_sent.get(process, 0) < len(heard.alone):
                signals_sent[process] = len(heard.alone)
                with suppress(ProcessLookupError):
                    os.kill(process, number)


def stages_below(snakemake: int, root: Path) -> list[int]:
    """Return the process ids of the stages that Snakemake runs on this machine."""
    with suppress(psutil.Error):
        children = {process.pid for process in psutil.Process(snakemake).children(recursive=True)}
        return [int(pid) for pid in stages_at_work(root).values() if pid.isdigit() and int(pid) in children]
    return []


def in_foreground() -> bool:
    """Return True if the terminal's Ctrl-C goes to this process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)
