"""What a job has measured so far, kept until it is done: a run that goes on after a kill takes it, and ends
with the same bytes.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.core.publish import publishing, read_json, remove, write_json

KEY, AGAIN = "key.json", "run the stage again"


class Scratch(NamedTuple):
    """A folder of results by name."""

    folder: Path

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` gives, as JSON keeps it: made now, or what an earlier run of this job made."""
        file = self.folder / f"{name}.json"
        if not file.is_file():
            write_json(file, make())
        return read_json(file, AGAIN)

    def arrays_once(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The same of numpy's arrays."""
        file = self.folder / f"{name}.npz"
        if not file.is_file():
            with publishing(file) as aside, aside.open("wb") as stream:
                np.savez(stream, **make())
        with np.load(file, allow_pickle=False) as stored:
            return dict(stored)


def open_scratch(folder: Path, key: dict[str, Any]) -> Scratch:
    """The results in `folder`, of the job with this `key`; those of another one are removed."""
    file = folder / KEY
    text = json.dumps(key, sort_keys=True)
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        remove(folder)
        folder.mkdir(parents=True)
        with publishing(file) as aside:
            aside.write_text(text, encoding="utf-8")
    return Scratch(folder)


def close_scratch(scratch: Scratch) -> None:
    """Remove the results; and the folder of all jobs, if this was the last."""
    remove(scratch.folder)
    above = scratch.folder.parent
    if above.is_dir() and not any(above.iterdir()):
        above.rmdir()


def name_of(allocation: Any) -> str:
    """A short name for an allocation: the same for the same types."""
    return hashlib.sha256(json.dumps(allocation, sort_keys=True).encode()).hexdigest()[:16]
