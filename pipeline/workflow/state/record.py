"""Recording of a finished stage with DVC: outputs to the cache, their hashes and its inputs' to `dvc.lock`.

The stage runner (`python -m pipeline STAGE`) calls it, so that `dvc status` is clean after Snakemake ran a
stage.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from pipeline.config.params import with_defaults
from pipeline.core.errors import MachineError, ToolError
from pipeline.core.locks import Held, lock_file, take, unusable
from pipeline.core.owner import end_with_owner
from pipeline.core.yaml_readers import read_strict
from pipeline.workflow import project
from pipeline.workflow.cluster_jobs import forget, is_remote
from pipeline.workflow.keys.code_keys import FOLDER, key_file
from pipeline.workflow.keys.imports import Package
from pipeline.workflow.keys.stamps import stamps
from pipeline.workflow.stages import Values, code_of_stages, users
from pipeline.workflow.state.cleanup import working
from pipeline.workflow.state.dvc_project import lock_record
from pipeline.workflow.state.lockfile import entry_of, inputs_of, params_of
from pipeline.workflow.state.settings import lock_values


def record(stage: str, root: Path) -> None:
    """Make DVC record `stage` ("train", "quantize@Q4_K_M") as it now is below `root`.

    Does nothing if DVC itself runs the stage, or if `root` is not a DVC project that knows it. The raw data
    that the stage read is recorded with it, as `dvc repro` does. Raises `ToolError` with DVC's own words.
    """
    record_all([stage], root)


def record_all(stages: Iterable[str], root: Path) -> None:
    """Make DVC record several stages like `record`, with one start of DVC, which takes seconds."""
    entries = {stage: entry for stage in stages if (entry := entry_of(stage, root)) is not None}
    if not entries or "DVC_STAGE" in os.environ:
        return
    deps = {dep for entry in entries.values() for dep in entry.get("deps", [])}
    sources = sorted(f"{dep}.dvc" for dep in deps if (root / f"{dep}.dvc").is_file())
    # In this order: a stage that is recorded does not run again, so its sources have to be in the cache then.
    command = [sys.executable, "-P", "-m", "dvc", "--wait-for-lock", "commit", "--force", *sources, *entries]
    with lock_record(root) as lock, TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        # It has a session of its own, the lock is passed on, and nobody has to read what it says: it goes on
        # if the run is killed.
        done = subprocess.run(
            command,
            cwd=root,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
            pass_fds=[lock.fileno()],
            check=False,
        )
        said.seek(0)
        lines = said.read().splitlines()
    if done.returncode:
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
        stated = " ".join(errors) or f"exit code {done.returncode}"
        raise ToolError(
            "Q-WORKFLOW-014",
            f"DVC could not record {', '.join(entries)} ({stated}): fix that, then run the same command "
            "again",
        )


def inputs_state(stage: str, root: Path) -> Any:
    """Return what a user may edit while `stage` runs: its parameters, its code and the raw data.

    Return None if nothing is recorded. DVC hashes these when a stage is done. Comparing the state before and
    after keeps `dvc.lock` from recording what the stage never read.
    """
    entry = entry_of(stage, root)
    if entry is None:
        return None
    # The settings are not checked: an unfinished edit of another section must not stop this stage.
    read = read_strict(root / "params.yaml")[0]
    recorded = lock_values(root)
    roots = code_of_stages()
    params = with_defaults(read if isinstance(read, dict) else {})
    sections = {key.partition(".")[0] for key in params_of(entry)}
    # Values that the stage reads from params.yaml, and those that DVC will record.
    tracked = {name: (params.get(name), recorded.get(name)) for name in sorted(sections)}
    edited = [root / dep for dep in entry.get("deps", []) if dep.startswith(users())]
    keys = [Path(Values(params).fill(dep)).stem for dep in entry.get("deps", []) if dep.startswith(FOLDER)]
    code = Package().key(*(module for key in keys for module in roots.get(key, [])))
    return tracked, code, stamps(edited, root)


def refresh_keys_for(stage: str, root: Path) -> None:
    """Write the keys of the code that `stage` is about to run, if this folder has them.

    A stage that is started by hand may have newer code. Raises `ConfigError` if only an upgrade may write
    them.
    """
    if (root / FOLDER).is_dir() or key_file(stage.partition("@")[0]) in inputs_of(stage, root):
        project.refresh_keys(root)


def is_project_config(params: Path | None, root: Path) -> bool:
    """Return True if dvc.lock describes these settings.

    It describes only those of the project's params.yaml.
    """
    return params is None or params.resolve() == (root / "params.yaml").resolve()


@contextmanager
def running(stage: str, root: Path) -> Iterator[None]:
    """Run `stage` below `root` in this process, and stop with the run that started it.

    No other process runs it meanwhile. What killed runs left is removed first. Raises `MachineError` if
    another process runs the stage.
    """
    end_with_owner(stage)
    lock: AbstractContextManager[object]
    try:
        lock = take(lock_file(stage, root))
    except Held as other:
        raise MachineError(
            "Q-WORKFLOW-011",
            f"{stage} is already running as process {other} in {root.resolve()}: wait until it is done, or "
            "end that process",
        ) from None
    except OSError as error:
        if not is_remote():
            raise unusable(error, root) from error
        lock = nullcontext()  # a shared file system without locks: Snakemake runs a job once
    with lock, working(root):
        forget(stage, root)
        yield
