"""What jobs on other machines leave for the machine on which Snakemake runs: `.quench/finished/STAGE.json`.

DVC's locks and `flock` mean nothing to another machine, so a job on a cluster's node neither records with DVC
nor restores from its cache. It leaves a receipt: what it read and wrote, by hash, or why it failed.
`pipeline.workflow.remote` records receipts.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pipeline.core.errors import QuenchError
from pipeline.core.publish import remove, write_json

REMOTE = "QUENCH_REMOTE"  # "1" in a job that Snakemake runs on another machine
FOLDER = Path(".quench/finished")


class Receipt(NamedTuple):
    """A stage that is done; {path relative to the project: md5 as DVC has it} of what it read and wrote."""

    stage: str
    settings: str  # a hash of its parameters and its code
    inputs: dict[str, str]
    outputs: dict[str, str]


class Failure(NamedTuple):
    """A stage that failed: its error as the user is to read it, and its exit code."""

    stage: str
    error: str
    exit_code: int


def is_remote() -> bool:
    """Whether this process is a job on another machine than Snakemake's main process."""
    return os.environ.get(REMOTE) == "1"


def leave(left: Receipt | Failure, root: Path) -> None:
    """Write what a job leaves. Raises `MachineError` if the disk doesn't take it."""
    write_json(_file(left.stage, root), left._asdict())


def leave_failure(stage: str, error: str, exit_code: int, root: Path) -> None:
    """Have the machine on which Snakemake runs show this error of a job; nothing is left where that is this
    machine.
    """
    if is_remote() and (root / ".dvc").is_dir():
        with suppress(QuenchError):  # the disk is full: the log may have it
            leave(Failure(stage, error, exit_code), root)


def forget(stage: str, root: Path) -> None:
    """Remove what an earlier job of this stage left."""
    with suppress(OSError):  # a folder that can only be read has nothing new
        remove(_file(stage, root))


def receipts(root: Path) -> list[Receipt]:
    """The stages that are done and not recorded yet, by name."""
    return [left for left in _left(root) if isinstance(left, Receipt)]


def take_failures(root: Path) -> list[Failure]:
    """The stages that failed, by name; what their jobs left is removed."""
    found = [left for left in _left(root) if isinstance(left, Failure)]
    for failure in found:
        forget(failure.stage, root)
    return found


def _left(root: Path) -> list[Receipt | Failure]:
    found: list[Receipt | Failure] = []
    for file in sorted((root / FOLDER).glob("[!.]*.json")):
        # one that is not whole, or of another version, is as good as none: the stage runs again
        with suppress(OSError, ValueError, TypeError):
            values = json.loads(file.read_text(encoding="utf-8"))
            found.append(Failure(**values) if "error" in values else Receipt(**values))
    return found


def _file(stage: str, root: Path) -> Path:
    return root / FOLDER / f"{stage}.json"
