"""Files that grow, read as they grow. They may be missing, cut in the middle of a line, or begun again.

The module is also sent to the Python of another machine (`pipeline.extras.ssh`), so it uses the standard
library alone.
"""

# An older Python on another machine can read the annotations then.
from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

PIECE = 1 << 20  # most bytes of a file in one piece


class Piece(NamedTuple):
    """New bytes of a file, which are those from `at` on.

    `fresh`: they do not continue what was read before. Another file is there, or bytes were left out.
    """

    at: int
    data: bytes
    fresh: bool


class Growing:
    """A file that grows, or that another one replaces, which is then read from its start.

    Of more than `most` new bytes only the last are read, from the start of a line.
    """

    def __init__(self, path: Path, most: int | None = None) -> None:
        self.path = path
        self.at = 0  # bytes that have been read
        self._most = most
        self._inode = -1

    def read(self) -> Iterator[Piece]:
        """Yield what was added since the last call; nothing if the file is missing.

        The first piece of another file is fresh, and comes even if that file is empty.
        """
        try:
            if not self.path.is_file():  # Opening a pipe would wait for who writes it.
                return
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            state = os.fstat(file.fileno())
            fresh = state.st_ino != self._inode or state.st_size < self.at
            if fresh:
                self._inode = state.st_ino
                self.at = self.start(file, state.st_size)
            if self._most is not None and state.st_size - self.at > self._most:
                fresh = True
                self.at = file.seek(state.st_size - self._most)
                self.at += len(file.readline(self._most))
            file.seek(self.at)
            while fresh or self.at < state.st_size:
                piece = Piece(self.at, file.read(min(PIECE, state.st_size - self.at)), fresh)
                self.at += len(piece.data)
                yield piece
                if not piece.data:  # The file was truncated meanwhile, or is empty.
                    return
                fresh = False

    def start(self, file: BinaryIO, size: int) -> int:
        """Return the offset from which another file of `size` bytes is read."""
        return 0


class Lines:
    """The lines in bytes that come in pieces. `half` is one that waits for its rest."""

    def __init__(self) -> None:
        self.half = b""

    def add(self, data: bytes, *, fresh: bool) -> list[bytes]:
        """Return the lines that `data` completes, without their ends. With `fresh`, `half` is dropped."""
        start = b"" if fresh else self.half
        *lines, self.half = (start + data).split(b"\n")
        return lines
