"""The files of a run, read as they grow, and the requests to a training in progress.

Nothing is written but a request, and no lock is taken. The module is also sent to the Python of another
machine (`pipeline.extras.watch.source`), where it uses the standard library and what is sent with it.
"""

# An older Python on another machine can read the annotations then.
from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.core.following import Growing
from pipeline.extras.ssh_answers import say, say_news

CHECKPOINTS = "models/checkpoints"  # path in a project
JOURNAL = "steps.jsonl"  # its name in the folder of the checkpoints
FINISHED = "reports/train.jsonl"  # the journal of a training that has ended
RUN = "run.json"
ROWS = "data/tokens/manifest.json"
PAGE = "reports/index.html"
LOG = "logs/train.log"
LOCK = ".quench/train.lock"
# bytes at the end of a file that are read; a journal of 16 MiB has some 30,000 steps
MOST = {"journal": 16 << 20, "log": 64 << 10}
LOOK_SECONDS = 0.5


class RunFiles:
    """The files of the run in `folder`: a project, or the folder of a training's checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.root, self.checkpoints = places(folder)
        self.files = {
            "journal": Growing(self.checkpoints / JOURNAL, MOST["journal"]),
            "log": Growing(self.root / LOG, MOST["log"]),
        }
        self.facts: dict[str, Any] = {}
        self.rows: tuple[int, int | None] = (-1, None)

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield what is new: {"facts"} of the run, then each {"piece"} of its files."""
        facts = self._facts()
        if facts != self.facts:
            self.facts = facts
            yield {"facts": facts}
        journal = self.checkpoints / JOURNAL
        if not journal.exists():
            journal = self.root / FINISHED
        if journal != self.files["journal"].path:
            self.files["journal"] = Growing(journal, MOST["journal"])
        for name, file in self.files.items():
            with suppress(OSError):  # A file that can't be read is like one that is missing.
                for piece in file.read():
                    left_out = piece.at if piece.fresh else 0
                    place = {"file": name, "fresh": piece.fresh, "left_out": left_out}
                    yield {"piece": {**place, "data": piece.data}}

    def _facts(self) -> dict[str, Any]:
        pid = pid_of(self.root)
        page = None
        with suppress(OSError):
            page = (self.root / PAGE).stat().st_mtime_ns
        return {
            "there": any(
                path.exists()
                for path in (self.checkpoints / JOURNAL, self.checkpoints / RUN, self.root / FINISHED)
            ),
            "pid": pid,
            "elsewhere": pid is not None and b"remote" in words_of(pid),
            "run": _text(self.checkpoints / RUN),
            "rows": self._rows(),
            "page": page,
        }

    def _rows(self) -> int | None:
        """Return the number of packed rows of the training; None if it is not known. A file that has not
        changed is not read again.
        """
        path = self.root / ROWS
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return None
        if changed != self.rows[0]:
            rows = None
            with suppress(ValueError, KeyError, TypeError):
                rows = int(json.loads(_text(path) or "")["splits"]["train"]["packed_rows"])
            self.rows = (changed, rows)
        return self.rows[1]


def places(folder: Path) -> tuple[Path, Path]:
    """Return the project and the folder of the checkpoints, of which `folder` is one.

    Checkpoints that are in no project have only themselves.
    """
    if not ((folder / JOURNAL).exists() or (folder / RUN).exists()):
        return folder, folder / CHECKPOINTS
    project = folder.absolute() / "../.."
    is_in_project = (project / CHECKPOINTS).exists() and folder.samefile(project / CHECKPOINTS)
    return (project.resolve() if is_in_project else folder), folder


def pid_of(root: Path) -> int | None:
    """Return the id of the process that trains in the project, if it runs on this machine and we may see it.

    It has the lock's file open. The lock itself is not tried, because a training that starts may want it.
    """
    lock = root / LOCK
    try:
        pid = int(lock.read_text())
        mine = lock.stat()
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(handle.stat(), mine):
                    return pid
    except (OSError, ValueError):
        pass
    return None


def words_of(pid: int) -> list[bytes]:
    """Return the command line of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def ask(folder: Path, request: str) -> str:
    """Leave the file `request` for the training.

    Return "asked", "already asked", "not running", or why not.
    """
    root, checkpoints = places(folder)
    if pid_of(root) is None:
        return "not running"
    try:
        (checkpoints / request).touch(exist_ok=False)
    except FileExistsError:
        return "already asked"
    except OSError as error:
        return f"{checkpoints} can't be written ({error.strerror})"
    return "asked"


def stop(folder: Path) -> str:
    """End the training as Ctrl-C does, with a checkpoint. Return "asked", "not running", or why not."""
    pid = pid_of(places(folder)[0])
    if pid is None:
        return "not running"
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError as error:
        return f"process {pid} can't be signalled ({error.strerror})"
    return "asked"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


# --- on another machine -------------------------------------------------------------------------------------


def look(folder: str) -> None:
    """Send a sign of life, so that a host that can't do its part is known at once."""
    say(said=str(Path(folder).expanduser().is_dir()))


def follow(folder: str) -> None:
    """Send what is there of a run, that this was all of it, and then its news until the reader is gone."""
    files = RunFiles(Path(folder).expanduser())
    for message in files.news():
        say(**message)
    say(ready=True)
    say_news(files.news, LOOK_SECONDS, ready=True)


def tell(folder: str, request: str) -> None:
    """Pass a request to the training, or stop it if that is "", and send what came of it."""
    path = Path(folder).expanduser()
    say(said=ask(path, request) if request else stop(path))


def main(call: str, **given: Any) -> None:
    """Run one of these functions for another machine."""
    calls: dict[str, Any] = {"look": look, "follow": follow, "tell": tell}
    calls[call](**given)
