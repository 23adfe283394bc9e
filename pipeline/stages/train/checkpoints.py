"""Checkpoints that can be trusted: written aside, sealed with every file's hash, renamed.

Only verified ones are resumed. A checkpoint that is written in its place may be torn, and still be the newest
by name. Here it gets its name only after all of it is on the disk: files, then the marker with their hashes,
fsync, rename. A torn one (after a disk fault or a manual deletion) is set aside, never resumed and never
deleted silently.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from pipeline.core.hashing import file_hash
from pipeline.core.jsonl import parse_object
from pipeline.core.publish import publishing, remove, write_json

MARKER = "complete.json"
WRITING = ".writing"  # The trainer writes here. What remains in it was never finished.
TORN = "torn"
REFERENCE = "reference.jsonl"  # the reference model's answers to preferences
# Checkpoints after the one that a user chose to resume from. Nothing reads them.
LATER = "later"
METRICS_LOG = "steps.jsonl"


def publish_checkpoint(written: Path, checkpoint: Path, notes: dict[str, Any]) -> None:
    """Move `written` to `checkpoint`, sealed: hashes of all files and `notes` in a marker, fsync, rename.
    Raises `OSError` if it does not read back.
    """

    def check(aside: Path) -> None:
        trouble = defect(aside)
        if trouble:
            raise OSError(f"{checkpoint.name} does not read back as it was written: {trouble}")

    with publishing(checkpoint, check) as aside:
        written.rename(aside)
        files = {
            path.relative_to(aside).as_posix(): file_hash(path)
            for path in sorted(aside.rglob("*"))
            if path.is_file()
        }
        write_json(aside / MARKER, {"files": files, **notes})


def defect(checkpoint: Path) -> str | None:
    """Return what keeps a checkpoint from being resumed, in a few words; None if all files are as sealed."""
    try:
        files = dict(read_notes(checkpoint)["files"])
    except FileNotFoundError:
        return f"it has no {MARKER}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"its {MARKER} can't be read"
    for name, digest in files.items():
        if not (checkpoint / name).is_file():
            return f"{name} is missing"
        if file_hash(checkpoint / name) != digest:
            return f"{name} is not what was written"
    return None


def read_notes(checkpoint: Path) -> dict[str, Any]:
    """Return the marker: hashes of `files`, and the notes sealed with them.

    Raises `OSError` or `ValueError`.
    """
    return parse_object((checkpoint / MARKER).read_bytes())


def newest_verified(folder: Path) -> Path | None:
    """Return the newest complete checkpoint below `folder`. Newer torn ones move to `folder`/torn, with a
    message on stderr.
    """
    # A kill during a save leaves these. They never were checkpoints.
    for unfinished in folder.glob(".*"):
        remove(unfinished)
    for checkpoint in reversed(checkpoints_in(folder)):
        trouble = defect(checkpoint)
        if trouble is None:
            return checkpoint
        aside = folder / TORN / checkpoint.name
        aside.parent.mkdir(exist_ok=True)
        remove(aside)
        checkpoint.rename(aside)
        print(f"train: {checkpoint.name} is torn ({trouble}): it is set aside in {aside}", file=sys.stderr)
    return None


def set_later_aside(folder: Path, chosen: Path) -> None:
    """Move what is newer than `chosen` to `folder`/later, with a copy of the metrics log, so that nothing
    resumes from it. The moved checkpoints are named on stderr.
    """
    later = [checkpoint for checkpoint in checkpoints_in(folder) if step_of(checkpoint) > step_of(chosen)]
    if not later:
        return
    aside = folder / LATER
    aside.mkdir(exist_ok=True)
    if (folder / METRICS_LOG).is_file():
        shutil.copy2(folder / METRICS_LOG, aside / METRICS_LOG)
    for checkpoint in later:
        remove(aside / checkpoint.name)  # the same step of the same run, set aside before
        checkpoint.rename(aside / checkpoint.name)
    names = ", ".join(checkpoint.name for checkpoint in later)
    print(
        f"train: newer than {chosen.name}, so not used any more: {names}; kept in {aside} until a run "
        "starts from nothing",
        file=sys.stderr,
    )


def prune(folder: Path, keep: int, best: Path | None = None) -> None:
    """Delete all but the `keep` newest checkpoints and `best`.

    Delete nothing while the newest can't be read.
    """
    checkpoints = checkpoints_in(folder)
    if not checkpoints or defect(checkpoints[-1]):
        return
    for checkpoint in checkpoints[:-keep]:
        if checkpoint != best:
            remove(checkpoint)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints below `folder`, oldest first."""
    return sorted((path for path in folder.glob("checkpoint-*") if step_of(path) >= 0), key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the optimizer step after which it was saved, or -1 if its name is not a checkpoint's."""
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1
