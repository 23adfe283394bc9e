"""The lines that a job adds to its log, read while it writes.

The log may be long, cut in the middle of a line or a character, started again, or not there yet: a reader
gets the lines that are whole, and never waits.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.core.text import safe

MOST = 1 << 20  # bytes that one look reads; of a log that grew by more it reads the end
LONGEST = 2000  # characters of a line that are kept
CLOCK = 0.05  # seconds by which a file's date may be before the clock
COLORS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Tail:
    """The log at `path` of a job that started at `since` (seconds since 1970).

    What an earlier run left there is not read.
    """

    def __init__(self, path: Path, since: float) -> None:
        self.path = path
        self.grown = False  # True if the last look found anything
        self._position = 0
        self._half = b""
        self._file: int | None = None  # inode
        self._old = self._state() if self._is_older(since) else None

    def lines(self, *, last: bool = False) -> Iterator[str]:
        """Yield the lines that were added since the last call; with `last` also an unfinished one."""
        text = self._half + self._added()
        whole, newline, self._half = text.rpartition(b"\n")
        if last or len(self._half) > MOST:
            whole = text
            newline = b""
            self._half = b""
        yield from _lines((whole + newline).decode("utf-8", errors="replace"))

    def _added(self) -> bytes:
        self.grown = False
        state = self._state()
        if state is None or state == self._old:
            return b""
        self._old = None
        inode, size, _ = state
        if inode != self._file or size < self._position:  # It was started again.
            self._file = inode
            self._position = 0
            self._half = b""
        if size == self._position:
            return b""
        try:
            with self.path.open("rb") as log:
                skipped = size - self._position > MOST
                if skipped:
                    self._half = b""
                log.seek(size - MOST if skipped else self._position)
                content = log.read(MOST)
                self._position = log.tell()
        except OSError:
            return b""
        self.grown = True
        return content.partition(b"\n")[2] if skipped else content

    def _state(self) -> tuple[int, int, int] | None:
        """Return inode, size and date of the log; None if it can't be read as a file."""
        try:
            state = self.path.stat()
        except OSError:
            return None
        return state.st_ino, state.st_size, state.st_mtime_ns

    def _is_older(self, since: float) -> bool:
        state = self._state()
        return state is not None and state[2] / 1e9 < since - CLOCK


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a text as a terminal would show them, without colors and control characters."""
    for line in text.split("\n"):
        shown = COLORS.sub("", line).rstrip().rpartition("\r")[2]
        if shown:
            yield safe(shown[:LONGEST])
