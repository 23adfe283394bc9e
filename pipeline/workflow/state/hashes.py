"""The md5 of files, as DVC records it, cached so that an unchanged file is never read twice.

DVC caches by inode, size and modification date, so bytes that change without a new date (a failing disk, a
tool that keeps dates) go unseen. This cache also compares the change time (ctime), which no ordinary program
can set. It is in `.quench/hashes.db` and may be deleted at any time. A job on another machine has its own,
because SQLite's locks need not reach other machines.
"""

import atexit
import hashlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from pipeline.core.progress import progress
from pipeline.workflow.cluster_jobs import is_remote

CHUNK = 2**20  # bytes
SHOWN = 2**28  # number of bytes from which on progress is shown
# Nanoseconds. A file that changed so recently may change once more with the same ctime, so it is not cached
# yet.
YOUNG = 100_000_000
SAVED_EVERY = 1.0  # seconds
INT64 = 2**63 - 1  # the largest number that SQLite can store
NEVER = -1  # instead of a change time: matches no file
UNREADABLE = "0" * 32  # instead of the md5 of a file that the disk can't read

Digests = Mapping[Path, str]  # md5 of files
State = tuple[int, int, int, int]  # inode, size, modification time, change time; both in nanoseconds


class Hashes:
    """The md5 of files below `root` or anywhere else; use it as a context manager."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self.unreported: dict[Path, str] = {}  # files read or dated by this object, which DVC may not know
        # Files with other bytes than cached, though inode, size and date are the same.
        self.suspects: set[Path] = set()
        self._unsaved: dict[bytes, tuple[State, str]] = {}
        self._saved_at = time.monotonic()
        folder = _own_folder() if is_remote() else self._root / ".quench"
        self._database, rows = _open(folder / "hashes.db")
        self._known: dict[bytes, tuple[State, str]] = {row[0]: (row[1:5], row[5]) for row in rows}

    def __enter__(self) -> "Hashes":
        return self

    def __exit__(self, *_: object) -> None:
        self._save()
        self._database.close()

    def md5(self, path: Path, *, again: bool = False) -> str | None:
        """Return the md5 of one file, None if it is missing. `again` reads it even if it is cached."""
        return self.md5s([path], again=again).get(path)

    def md5s(self, paths: Iterable[Path], *, again: bool = False) -> dict[Path, str]:
        """Return the md5 of each file that exists; one that can't be read has `UNREADABLE`."""
        digests = {path: None if again else self._recall(path) for path in paths}
        unknown = [path for path, digest in digests.items() if digest is None and path.is_file()]
        size = sum(path.stat().st_size for path in unknown)
        shown = (
            progress("reading files that may have changed", size)
            if size > SHOWN
            else nullcontext(lambda _: None)
        )
        with shown as advance, ThreadPoolExecutor(os.cpu_count()) as pool:
            for path, seen in zip(unknown, pool.map(partial(_look, advance=advance), unknown), strict=True):
                digests[path] = self._take_in(path, *seen) if seen else None
        return {path: digest for path, digest in digests.items() if digest is not None}

    def date(self, path: Path, date: int) -> None:
        """Set the date of `path` (nanoseconds). This changes its ctime, so a cached hash is stored again."""
        digest = self._recall(path)
        os.utime(path, ns=(date, date))
        if digest is not None:
            self._remember(path, _state(path), digest)

    def _recall(self, path: Path) -> str | None:
        entry = self._known.get(self._name(path))
        try:
            return entry[1] if entry and entry[0] == _state(path) else None
        except OSError:
            return None

    def _take_in(self, path: Path, digest: str, before: State, after: State, started: int) -> str:
        entry = self._known.get(self._name(path))
        if digest == UNREADABLE:
            pass  # The file may be readable another time.
        elif entry and entry[0][:3] == after[:3] and entry[1] != digest:
            self.suspects.add(path)  # It stays one until it is another file, or has another date.
            self._remember(path, (*after[:3], NEVER), entry[1])
        elif before == after and after[3] < started - YOUNG:
            self._remember(path, after, digest)
        self.unreported[path] = digest
        return digest

    def _remember(self, path: Path, state: State, digest: str) -> None:
        self.unreported[path] = digest
        self._known[self._name(path)] = self._unsaved[self._name(path)] = state, digest
        if time.monotonic() - self._saved_at > SAVED_EVERY:
            self._save()

    def _save(self) -> None:
        rows = [(name, *state, digest) for name, (state, digest) in self._unsaved.items()]
        self._unsaved = {}
        self._saved_at = time.monotonic()
        with suppress(sqlite3.Error), self._database:  # A file that is not cached is read again.
            self._database.executemany("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?)", rows)

    def _name(self, path: Path) -> bytes:
        """Return a file's name in the cache. It stays valid if the project is moved."""
        return os.fsencode(os.path.relpath(path, self._root))


@cache
def _own_folder() -> Path:
    """Return a folder that is deleted when this process exits."""
    folder = tempfile.mkdtemp(prefix="quench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _look(path: Path, advance: Callable[[int], None]) -> tuple[str, State, State, int] | None:
    """Read a file. Return its md5, its state before and after, and when that began (nanoseconds since 1970).

    Return None if it is missing.
    """
    try:
        before = _state(path)
        started = time.time_ns()
        try:
            digest = _md5(path, advance)
        except OSError:
            digest = UNREADABLE
        return digest, before, _state(path), started
    except FileNotFoundError:
        return None


def _state(path: Path) -> State:
    status = path.stat()
    return status.st_ino & INT64, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _md5(path: Path, advance: Callable[[int], None]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb", buffering=0) as file:
        while block := file.read(CHUNK):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def _open(file: Path) -> tuple[sqlite3.Connection, list[Any]]:
    """Return the database and its rows.

    A damaged one starts empty. If none can be written, it exists for this process only.
    """
    for attempt in (1, 2):
        try:
            file.parent.mkdir(exist_ok=True)
            return _with_rows(sqlite3.connect(file, timeout=60))
        except (sqlite3.DatabaseError, OSError) as error:
            if attempt == 1 and type(error) is sqlite3.DatabaseError:
                file.unlink(missing_ok=True)  # The file is not a database any more.
    return _with_rows(sqlite3.connect(":memory:"))


def _with_rows(database: sqlite3.Connection) -> tuple[sqlite3.Connection, list[Any]]:
    database.execute("PRAGMA synchronous = OFF")  # a cache, which a power cut may destroy
    database.execute(
        "CREATE TABLE IF NOT EXISTS hashes (path BLOB PRIMARY KEY, inode INTEGER, size INTEGER, mtime "
        "INTEGER, ctime INTEGER, md5 TEXT)"
    )
    return database, database.execute("SELECT * FROM hashes").fetchall()
