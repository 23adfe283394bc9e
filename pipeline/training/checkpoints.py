"""Checkpoints that can be trusted: a marker with every file's hash, written last; only verified ones are resumed.

The trainer's own checkpoints are not atomic, so the newest by name may be torn. A checkpoint belongs to one run:
its marker holds the key of that run (data, base, parameters, versions), and another run's checkpoints are cleared.
"""

import json
from pathlib import Path

from pipeline.hashing import file_hash
from pipeline.publish import remove, write_json

MARKER = "complete.json"


def seal(checkpoint: Path, key: str) -> None:
    """Write the marker that makes `checkpoint` resumable by the run with this `key`."""
    files = {path.relative_to(checkpoint).as_posix(): file_hash(path) for path in sorted(checkpoint.rglob("*")) if path.is_file()}
    write_json(checkpoint / MARKER, {"key": key, "files": files})


def newest_verified(folder: Path, key: str) -> Path | None:
    """The newest whole checkpoint of the run with this `key`; the others are deleted, for they can't be used."""
    best: Path | None = None
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=_step):
        if _is_whole(checkpoint, key):
            best = checkpoint
        else:
            remove(checkpoint)
    return best


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def _is_whole(checkpoint: Path, key: str) -> bool:
    try:
        marker = json.loads((checkpoint / MARKER).read_text(encoding="utf-8"))
        return marker["key"] == key and all(file_hash(checkpoint / name) == digest for name, digest in marker["files"].items())
    except (OSError, ValueError, KeyError):
        return False  # no marker, torn marker or a file gone: not whole
