"""Where a run is watched: a folder of this machine, or of one that is reached by SSH."""

import queue
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Base64Bytes, Field

from pipeline.core import following
from pipeline.core.errors import DataError, QuenchError
from pipeline.core.text import safe
from pipeline.extras.ssh import LONGEST_PAUSE, Answer, ConnectionLost, Request, Ssh
from pipeline.extras.watch import files

REMOTE = re.compile(r"([^/:]+):(.*)", re.DOTALL)
MODULES = (following, files)  # what another machine runs
OLDEST_PYTHON = "3.8"  # that runs them
Word = Annotated[str, Field(max_length=1000)]


class Facts(Answer):
    """What is known of a run besides its steps.

    `there`: there is or was a training. `pid`: its process, `elsewhere` if that only waits for a training on
    another machine. `run`: its record (run.json). `rows`: its packed rows. `page`: the report's date.
    """

    there: bool
    pid: Annotated[int, Field(gt=0)] | None
    elsewhere: bool
    run: Annotated[str, Field(max_length=1 << 20)] | None
    rows: Annotated[int, Field(ge=0, le=1 << 50)] | None
    page: Annotated[int, Field(ge=0)] | None


class Piece(Answer):
    """New bytes of a file. `fresh`: it begins here, after `left_out` bytes that are not read.

    `data` is base64 only in a host's JSON.
    """

    file: Literal["journal", "log"]
    fresh: bool
    left_out: Annotated[int, Field(ge=0, le=1 << 50)]
    data: Base64Bytes


class News(Answer):
    """One message of a host: facts, a piece of a file, what came of a request.

    `ready` says that all was sent that is there, and then that the host is alive.
    """

    facts: Facts | None = None
    piece: Piece | None = None
    said: Word | None = None
    ready: bool = False


class Source(Protocol):
    """A run that is watched. `name` is how it is called, `trouble` why nothing new comes, or ""."""

    name: str
    folder: Path | None  # its project, if that is on this machine
    trouble: str

    def news(self) -> list[Facts | Piece]:
        """Return what is new since the last call."""
        ...

    def ask(self, request: str) -> str:
        """Pass a request (a name of `pipeline.stages.train.requests`, or "" for the end) to the training."""
        ...

    def close(self) -> None:
        """Stop watching."""
        ...


class LocalRun:
    """A run in a folder of this machine."""

    trouble = ""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise DataError(
                "Q-WATCH-001", f"{folder} is not a folder: name a project in which a training runs or ran"
            )
        self.watched = folder
        self.name = str(folder.absolute())
        self.files = files.RunFiles(folder)
        self.folder: Path | None = self.files.root

    def news(self) -> list[Facts | Piece]:
        """Return what is new since the last call."""
        return [
            Facts(**message["facts"]) if "facts" in message else Piece.model_construct(**message["piece"])
            for message in self.files.news()
        ]

    def ask(self, request: str) -> str:
        """Pass a request to the training."""
        return files.ask(self.watched, request) if request else files.stop(self.watched)

    def close(self) -> None:
        """Do nothing: no file is open."""


class RemoteRun:
    """A run in the folder `there` of a host. A thread reads what the host sends, and connects again."""

    folder: Path | None = None

    def __init__(self, connection: Ssh, there: str) -> None:
        self.connection = connection
        self.there = there or "."
        self.name = f"{connection.name}:{safe(there, 200)}"
        self.trouble = ""
        self.error: QuenchError | None = None
        self._news: queue.SimpleQueue[Facts | Piece] = queue.SimpleQueue()
        self._over = threading.Event()
        self._ready = threading.Event()  # All that was there has come, or an error has ended the thread.
        # The first look says in one sentence what is wrong, before a screen is drawn.
        connection.trying(lambda: next(self._call("look")))
        threading.Thread(target=self._read, daemon=True).start()
        self._wait()

    def news(self) -> list[Facts | Piece]:
        """Return what has come since the last call. Raises the `QuenchError` that ended the connection."""
        if self.error:
            raise self.error
        found = []
        with suppress(queue.Empty):
            while True:
                found.append(self._news.get_nowait())
        return found

    def ask(self, request: str) -> str:
        """Pass a request to the training there."""
        try:
            return safe(next(self._call("tell", request=request)).said or "", 200)
        except ConnectionLost as cut:
            return f"no connection ({cut})"
        except QuenchError as error:
            return str(error)

    def close(self) -> None:
        """Let the thread end with its next message; the process there ends when nobody reads."""
        self._over.set()

    def _call(self, call: str, **given: Any) -> Iterator[News]:
        words = {"folder": self.there, **given}
        follows = call == "follow"
        return self.connection.call(Request(call, words, MODULES, News, follows, python=OLDEST_PYTHON))

    def _wait(self) -> None:
        """Wait until all that is there has come. Print why if it does not come."""
        said = ""
        while not self._ready.wait(files.LOOK_SECONDS):
            trouble = self.trouble
            if trouble and trouble != said:
                print(f"watch: {trouble}", file=sys.stderr, flush=True)
            said = trouble

    def _read(self) -> None:
        pause = 0.5
        while not self._over.is_set():
            try:
                for news in self._call("follow"):
                    self.trouble = ""
                    pause = 0.5
                    found = news.facts or news.piece
                    if found:
                        self._news.put(found)
                    if news.ready:
                        self._ready.set()
                    if self._over.is_set():
                        return
            except ConnectionLost as cut:
                self.trouble = f"no connection to {self.connection.name} ({cut}); trying again"
            except QuenchError as error:
                self.error = error
                self._ready.set()
                return
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def source_of(place: str, python: str, config: Path | None) -> Source:
    """Return the run at `place`: a folder, or HOST:FOLDER, if no folder here is called so.

    Raises `DataError` for a folder that is missing, and the errors of a connection.
    """
    remote = REMOTE.fullmatch(place)
    if remote is None or Path(place).exists():
        return LocalRun(Path(place))
    return RemoteRun(Ssh(remote[1], python, config), remote[2])
