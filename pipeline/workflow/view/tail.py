"""The lines that a job adds to its log, read while it writes.

The log may be long, started again, or not there yet: a reader gets the lines that are whole, and never waits.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pipeline.core.following import Growing, Lines
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
        self._log = Growing(path, MOST)
        self._lines = Lines()
        state = self._state()
        self._old = state if state and state[2] / 1e9 < since - CLOCK else None

    def lines(self, *, last: bool = False) -> Iterator[str]:
        """Yield the lines that were added since the last call; with `last` also an unfinished one."""
        lines = []
        if self._old is None or self._old != self._state():
            self._old = None
            with suppress(OSError):  # A log that can't be read is like one that is missing.
                for piece in self._log.read():
                    lines += self._lines.add(piece.data, fresh=piece.fresh)
        if last or len(self._lines.half) > MOST:
            lines += self._lines.add(b"\n", fresh=False)
        yield from filter(None, map(_shown, lines))

    def _state(self) -> tuple[int, int, int] | None:
        """Return inode, size and date of the log; None if it can't be read as a file."""
        try:
            state = self.path.stat()
        except OSError:
            return None
        return state.st_ino, state.st_size, state.st_mtime_ns


def _shown(line: bytes) -> str:
    """Return a line as a terminal would show it, without colors and control characters."""
    text = COLORS.sub("", line.decode("utf-8", errors="replace"))
    return safe(text.rstrip().rpartition("\r")[2][:LONGEST])
