"""What a run prints and writes, sent home as it comes; and the call of this and all else here."""

from __future__ import annotations  # an older Python is to say so, not to stumble

import base64
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.commands.remote.host.files import LOOK_SECONDS, RUNS, Files, alive, say, snapshot, wanted
from pipeline.commands.remote.host.runs import check, clean, look, runs, start, stop

PIECE = 1 << 20  # bytes of a file in one answer
QUIET_SECONDS = 5.0  # without news: a sign of life, by which the other end knows that the line is not cut


def follow(run: str, files: Files, checkpoints: str, tails: dict[str, tuple[int, str]]) -> None:
    """Send what is new in `files` ({name: path in the project's folder}), where `tails` says what is known of
    each ([size, sha256]), and the names of the checkpoints in the folder `checkpoints`, until the run ends.

    A checkpoint is named after the steps before it were sent.
    """
    folder = RUNS / run
    open_files = [Tail(name, folder / path, *tails[name]) for name, path in files.items()]
    shown: list[str] = []
    last_message = time.monotonic()
    while True:
        running = alive(folder)  # before reading: nothing is written after
        complete = sorted(
            path.parent.name for path in (folder / checkpoints).glob("checkpoint-*/complete.json")
        )
        news = [piece for tail in open_files for piece in tail.read()]
        if complete != shown:
            news.append({"checkpoints": complete})
            shown = complete
        if not running:
            news.append({"ended": True})
        if news or time.monotonic() - last_message > QUIET_SECONDS:
            for message in news or [{}]:
                say(**message)
            last_message = time.monotonic()
        if not running:
            return
        time.sleep(LOOK_SECONDS)


class Tail:
    """A file that grows, or is replaced by another that begins otherwise: that is sent from its start."""

    def __init__(self, name: str, path: Path, size: int, digest: str) -> None:
        self.name, self.path, self.size, self.digest, self.inode = name, path, size, digest, -1

    def read(self) -> Iterator[dict[str, Any]]:
        """What is new, in pieces."""
        try:
            with self.path.open("rb") as file:
                state = os.fstat(file.fileno())
                if state.st_ino != self.inode or state.st_size < self.size:
                    self.inode, self.sum = state.st_ino, hashlib.sha256(file.read(self.size))
                    if self.sum.hexdigest() != self.digest or state.st_size < self.size:
                        self.size, self.sum = 0, hashlib.sha256()
                file.seek(self.size)
                while content := file.read(PIECE):
                    self.sum.update(content)
                    at, self.size = self.size, self.size + len(content)
                    self.digest = self.sum.hexdigest()
                    data = base64.b64encode(content).decode()
                    yield {"piece": {"file": self.name, "at": at, "data": data}}
        except FileNotFoundError:
            return


CALLS = {call.__name__: call for call in (check, wanted, start, look, follow, snapshot, runs, stop, clean)}


def main(name: str, /, **given: Any) -> None:
    """Do one of them."""
    os.umask(0o077)
    try:
        CALLS[name](**given)
    except BrokenPipeError:
        os._exit(1)  # the reader is gone
    except OSError as error:
        say(error=f"{type(error).__name__}: {error}")
