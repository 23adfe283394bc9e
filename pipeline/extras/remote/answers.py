"""Answers of a host that trains: the shape and the length of everything that it sends, checked once before it
is used (`pipeline.extras.ssh.parse`).
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import AfterValidator, Base64Bytes, Field, model_validator

from pipeline.extras.ssh import Answer

MOST_FOLLOWED = 4 << 30  # bytes of a log or a journal
LONGEST_NAME = 255  # bytes of a file's name


def _place(value: str) -> str:
    parts = value.split("/")
    if any(not part or part.startswith(".") or len(part.encode()) > LONGEST_NAME for part in parts):
        raise ValueError("no path below a project")
    if not value.isprintable():
        raise ValueError("a path with what can't be printed")
    return value


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Bytes = Annotated[int, Field(ge=0, le=1 << 50)]
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
Place = Annotated[str, Field(max_length=1000), AfterValidator(_place)]


class Installed(Answer):
    """`check`: Python's version as 3.11.7, packages' versions (None: missing), whether rsync is installed."""

    python: Annotated[str, Field(pattern=r"^\d{1,3}\.\d{1,3}\.\d{1,3}$")]
    versions: dict[Name, Name | None]
    rsync: bool


class Missing(Answer):
    """`wanted`: hashes of the files to send, with the bytes of each that are there."""

    missing: dict[Sha256, Bytes]


class Started(Answer):
    """`start`: hashes of damaged files. It is empty if train has started."""

    damaged: list[Sha256]


class State(Answer):
    """`look`, `stop`: a run's state, its exit code once exited, its newest checkpoint's step (or -1)."""

    state: Literal["running", "ended", "dead", "none"]
    step: Annotated[int, Field(ge=-1, lt=1 << 50)]
    code: Annotated[int, Field(ge=-255, le=255)] | None = None

    @model_validator(mode="after")
    def _has_code_if_ended(self) -> "State":
        if (self.state == "ended") != (self.code is not None):
            raise ValueError("an exit code belongs to a run that ended")
        return self


class Listed(State):
    """Run in `Runs`, with the last line of its log."""

    line: str


class Runs(Answer):
    """`runs`: every run there, and the bytes of all."""

    runs: dict[Name, Listed]
    bytes: Bytes


class Snapshot(Answer):
    """`snapshot`: {path in the project: (sha256, size)}, or None if the run's folder is gone."""

    files: dict[Place, tuple[Sha256, Bytes]] | None

    @model_validator(mode="after")
    def _a_tree(self) -> "Snapshot":
        for place in self.files or ():
            for folder in accumulate(place.split("/")[:-1], "{}/{}".format):
                if folder in (self.files or ()):
                    raise ValueError(f"{folder} is a file and a folder")
        return self

    def outside(self, tops: Sequence[str]) -> str | None:
        """Return a path that is neither one of the files in `tops` nor below one of the folders there (those
        without an extension), or None. A host must not be able to write, or delete, any other path.
        """
        files = {top for top in tops if "." in top}
        folders = tuple(f"{top}/" for top in tops if top not in files)
        return next((at for at in self.files or () if at not in files and not at.startswith(folders)), None)


class Piece(Answer):
    """Contents of a file at an offset in bytes."""

    file: Literal["log", "journal"]
    at: Annotated[int, Field(ge=0, le=MOST_FOLLOWED)]
    data: Base64Bytes


class News(Answer):
    """`follow`: a piece of a file, the checkpoints there, the end, or (if none of these) a sign of life."""

    piece: Piece | None = None
    checkpoints: list[Name] = Field(default=[])
    ended: bool = False


class Cleaned(Answer):
    """`clean`: the runs that stay because they are running."""

    running: list[Name]


KINDS: dict[str, type[Answer]] = {
    "check": Installed,
    "wanted": Missing,
    "start": Started,
    "look": State,
    "follow": News,
    "snapshot": Snapshot,
    "runs": Runs,
    "stop": State,
    "clean": Cleaned,
}
