"""Files on the host: their folders, files that arrive and leave by hash, and files that grow, sent as they
grow.
"""

# An older Python is to report its version instead of failing with a syntax error.
from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.core.following import Growing, Piece
from pipeline.extras.ssh_answers import say, say_news

CHECKPOINTS = "models/checkpoints"  # path in the project's folder
HOME = Path.home() / ".cache/quench/remote"
OBJECTS = HOME / "objects"
INCOMING = HOME / "incoming"
RUNS = HOME / "runs"
LOOK_SECONDS = 0.2
Files = dict[str, str]  # {path: sha256}, or {name: path}


def alive(folder: Path) -> bool:
    """Return True if a process holds the run's lock."""
    try:
        with (folder / "alive").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def files_below(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return [path] if path.is_file() else []


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def wanted(files: dict[str, int]) -> None:
    """Report which of `files` ({sha256: size}) are missing here, with the bytes that have arrived. Complete
    files are hashed and kept.
    """
    for folder in (HOME, OBJECTS, INCOMING, RUNS):
        folder.mkdir(parents=True, exist_ok=True)
    HOME.chmod(0o700)
    missing = {}
    for name, size in files.items():
        arriving = INCOMING / name
        arrived = arriving.stat().st_size if arriving.exists() else 0
        if not (OBJECTS / name).exists() and arriving.exists() and arrived >= size:
            if sha256(arriving) == name:
                arriving.replace(OBJECTS / name)
            else:
                arriving.unlink()
                arrived = 0
        if not (OBJECTS / name).exists():
            missing[name] = arrived
    say(missing=missing)


def snapshot(run: str, paths: list[str], skip: list[str]) -> None:
    """Keep the files at `paths` (in the project, folders with everything below) for rsync as they are now,
    and report {path: [sha256, size]}. Names that begin with a dot, and those in `skip`, are left out.
    """
    folder = RUNS / run
    project = folder / "project"
    out = folder / "out"
    if not out.is_dir():
        say(files=None)  # It was removed.
        return
    with (folder / "snapshot").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # After a lost connection another process may still be at work.
        memory = json.loads(read(folder / "hashes.json") or "{}")
        entries = {}
        for path in (path for top in paths for path in files_below(project / top)):
            place = path.relative_to(project).as_posix()
            if any(part.startswith(".") or part in skip for part in Path(place).parts):
                continue
            try:
                entries[place] = kept(path, place, out, memory.get(place))
            except FileNotFoundError:
                continue  # The file was pruned at this moment.
        for old in out.iterdir():
            if old.name not in {entry[-1] for entry in entries.values()}:
                old.unlink()
        (folder / "hashes.json").write_text(json.dumps(entries))
    say(files={place: (name, size) for place, (_, size, _, name) in entries.items()})


def kept(path: Path, place: str, out: Path, entry: list[Any] | None) -> list[Any]:
    """Return [inode, size, date, sha256] of a file that is now in `out` too. It is not read if it is
    unchanged since `entry`.
    """
    state = path.stat()
    key = [state.st_ino, state.st_size, state.st_mtime_ns]
    if entry and entry[:-1] == key and (out / entry[-1]).exists():
        return entry
    aside = out / "aside"
    aside.unlink(missing_ok=True)
    # A published checkpoint never changes, and may be deleted at any time. Other files grow.
    (os.link if "/checkpoint-" in place else shutil.copyfile)(path, aside)
    key[1] = aside.stat().st_size
    name = sha256(aside)
    aside.replace(out / name)
    return [*key, name]


def follow(run: str, files: Files, checkpoints: str, tails: dict[str, tuple[int, str]]) -> None:
    """Send what is new in `files` ({name: path in the project's folder}) and the names of the checkpoints in
    the folder `checkpoints`, until the run exits. `tails` contains what the receiver has of each file ([size,
    sha256]).

    A checkpoint is announced after the steps before it were sent.
    """
    folder = RUNS / run
    copies = {name: Copied(folder / path, *tails[name]) for name, path in files.items()}
    shown: list[str] = []

    def news() -> Iterator[dict[str, Any]]:
        nonlocal shown
        # It is read before the files, because nothing is written after the run has exited.
        running = alive(folder)
        complete = sorted(
            path.parent.name for path in (folder / checkpoints).glob("checkpoint-*/complete.json")
        )
        for name, file in copies.items():
            for piece in file.read():
                if piece.data:
                    yield {"piece": {"file": name, "at": piece.at, "data": piece.data}}
        if complete != shown:
            yield {"checkpoints": complete}
            shown = complete
        if not running:
            yield {"ended": True}

    say_news(news, LOOK_SECONDS)


class Copied(Growing):
    """A file of which the receiver has the first `size` bytes, with the SHA-256 `digest`.

    Another file that begins with them is continued there.
    """

    def __init__(self, path: Path, size: int, digest: str) -> None:
        super().__init__(path)
        self.at = size
        self.digest = digest

    def start(self, file: BinaryIO, size: int) -> int:
        """Return the size of what the receiver has, or 0 if `file` does not begin with it."""
        self.sum = hashlib.sha256(file.read(self.at))
        if size >= self.at and self.sum.hexdigest() == self.digest:
            return self.at
        self.sum = hashlib.sha256()
        return 0

    def read(self) -> Iterator[Piece]:
        """Yield what the receiver does not have yet."""
        for piece in super().read():
            self.sum.update(piece.data)
            self.digest = self.sum.hexdigest()
            yield piece
