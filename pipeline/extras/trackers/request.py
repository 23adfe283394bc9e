"""What a tracker's process is asked to do, and the files that it reads and writes."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pipeline.core.publish import write_json
from pipeline.stages.train.checkpoints import METRICS_LOG
from pipeline.stages.train.run import RUN

FOLDER = "reports/trackers"  # what the trackers store on this machine, and how far each has got
CHECKPOINTS = "models/checkpoints"
FILES = (f"{CHECKPOINTS}/{RUN}", f"{CHECKPOINTS}/{METRICS_LOG}")  # the files of a run that are read
# How a training ended. The process that reads none of these words knows that it was killed.
Outcome = Literal["finished", "stopped", "failed"]
Stamp = tuple[int, int, int] | None  # inode, size and time of a file; None if it is missing


@dataclass(frozen=True)
class Table:
    """A table for people to read. `figures` are its numbers by name, for curves."""

    name: str
    columns: list[str]
    rows: list[list[Any]]
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """The tracker, the project below `root`, the `title` of its runs, and the `settings` that are sent.

    With `table` and `run`, the run of that id gets the table, and nothing is followed. `before` are the
    stamps of `FILES` before the training began.
    """

    tracker: str
    root: str
    title: str
    settings: dict[str, Any]
    before: list[Stamp]
    run: str = ""
    table: Table | None = None

    def line(self) -> bytes:
        """Return the request as a line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def parsed(cls, line: bytes) -> Self:
        """Return the request in a line of JSON."""
        values = json.loads(line)
        values["before"] = [stamp and tuple(stamp) for stamp in values["before"]]
        values["table"] = values["table"] and Table(**values["table"])
        return cls(**values)


@dataclass
class Sent:
    """How far a tracker has got: the run's id, the tracker's own id of it, and the last step and evaluation
    that it has.
    """

    run: str
    id: str
    step: int = 0
    evaluated: int = -1
    finished: bool = False

    @classmethod
    def read(cls, root: Path, tracker: str) -> "Sent | None":
        """Return the record of a tracker; None without one, or if it can't be read."""
        try:
            return cls(**json.loads(_record(root, tracker).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, root: Path, tracker: str) -> None:
        """Publish the record."""
        write_json(_record(root, tracker), asdict(self))


def _record(root: Path, tracker: str) -> Path:
    return root / FOLDER / f"{tracker}.json"


def stamps(root: Path) -> list[Stamp]:
    """Return the stamps of `FILES` as they are now."""
    return [_stamp(root / file) for file in FILES]


def _stamp(file: Path) -> Stamp:
    try:
        now = file.stat()
    except OSError:
        return None
    return now.st_ino, now.st_size, now.st_mtime_ns
