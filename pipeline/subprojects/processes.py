"""Set up a sub-project, a folder with a `params.yaml` of its own and links to what it shares with the
project, and run stages and modules in it. Each is a separate process that is stopped with this one.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pipeline.config.params import Params
from pipeline.config.trackers import TENSORBOARD
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
from pipeline.core.places import PROJECT, expanded
from pipeline.core.progress import record_for_children
from pipeline.core.publish import remove, write_text

Settings = dict[str, dict[str, Any]]  # {section: {key: value}}
# Variables of the run that a sub-project does not get: nothing of a sub-project is in DVC's cache, and its
# stages stop with this process, which is told when the run stops. The first is
# `pipeline.workflow.settle.REUSE`; an import would put all code of the workflow into the keys of
# what is trained.
OF_THE_RUN = ("QUENCH_REUSE", RUN, DVC)
ERRORS: dict[int, type[QuenchError]] = {
    kind.exit_code: kind for kind in (ConfigError, DataError, ToolError, GateError, MachineError)
}


def open_subproject(folder: Path, values: Settings, links: Mapping[str, Path]) -> Path:
    """Return the sub-project in `folder` (absolute), made or changed to have the settings `values` and
    `links` ({path in it: target}). Files that a killed job left in it stay.
    """
    for place, target in links.items():
        link = folder / place
        link.parent.mkdir(parents=True, exist_ok=True)
        remove(link)  # It may lead to where the project was before it was copied.
        link.symlink_to(target.resolve())
    # Trackers get the project's own training, not each of a hundred trials.
    train = values["train"] | {"report_to": [TENSORBOARD]}
    # JSON is YAML.
    write_text(folder / "params.yaml", json.dumps(values | {"train": train}, indent=2, ensure_ascii=False))
    return folder


def changed_params(params: Params, *changes: Settings) -> Settings:
    """Return `params` as a dict for YAML under `changes`, the last on top, validated.

    llama.cpp's folder is absolute.
    """
    home = params.machine.llama_cpp
    values: Settings = params.model_dump(mode="json")
    values["machine"]["llama_cpp"] = str(expanded(home, "machine.llama_cpp").resolve()) if home else None
    for change in changes:
        for section, changed in change.items():
            values[section] |= changed
    Params.model_validate(values)
    return values


def size_of(path: Path) -> int:
    """Return the bytes of a file; of a folder its weights' (safetensors), or all files' if it has none."""
    if path.is_file():
        return path.stat().st_size
    files = list(path.glob("*.safetensors")) or [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def run_stage(project: Path, *words: str) -> None:
    """Run `python -m pipeline WORDS` on a sub-project.

    Raises its error in a sentence (its own message is above).
    """
    place = ("--root", str(project), "--params", str(project / "params.yaml"))
    run_module("pipeline", *words, *place, what=f"{words[0]} in {project.name}")


def run_module(module: str, *words: str, what: str) -> None:
    """Run `python -m MODULE WORDS` and wait for it; `what` names it in errors. Raises `QuenchError` of the
    child's exit code, `Stopped` after a signal.
    """
    with started(module, *words) as process:
        code = process.wait()
    stopped = signal_of(code)
    if stopped:
        raise Stopped(stopped)
    if code:
        raise ERRORS.get(code, ToolError)(
            "Q-COMPARE-007",
            f"{what} failed (exit status {code}; its reason stands above): fix that, then run the same "
            "command again",
        )


@contextmanager
def started(module: str, *words: str, output: IO[bytes] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python -m MODULE WORDS` while the body runs; it writes to `output` if that is given. If the body
    raises, the process is asked to stop, and waited for.
    """
    process = subprocess.Popen(
        # A training saves a checkpoint at SIGTERM.
        bound([sys.executable, "-m", module, *words], signal.SIGTERM),
        cwd=PROJECT,
        env={name: value for name, value in os.environ.items() if name not in OF_THE_RUN}
        | record_for_children(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        # Ctrl-C in a terminal reaches an entire group, and a training exits at once at its second signal.
        start_new_session=True,
    )
    try:
        yield process
    except BaseException:
        end(process)
        raise


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process and its children to stop, and wait: a training writes its checkpoint."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def signal_of(code: int) -> int | None:
    """Return the signal that killed a process with this exit status, None if none did."""
    if code < 0:
        return -code
    number = code - 128  # a shell's exit status for a signal
    return number if number in (signal.SIGINT, signal.SIGTERM) else None


def train(project: Path, *words: str) -> None:
    """Run stage train in `project` with options `words`; resume a killed one if its inputs are the same.

    Raises the error of a failed stage.
    """
    try:
        run_stage(project, "train", *words)
    except ConfigError:
        if not any((project / "models/checkpoints").glob("checkpoint-*")):
            raise
        # A killed training of other settings or rows left them here, where nothing else needs them.
        print(f"the checkpoints in {project.name} are of other inputs: training starts again", flush=True)
        run_stage(project, "train", "--no-resume", *words)
