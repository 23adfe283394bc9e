"""Progress of a long job: a bar on a terminal, an occasional plain line in a log. Nothing for a short job.

While a job runs, how far it is also stands in `.quench/progress/JOB.json`, for `quench status` and the view
of a run.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.core.text import console

FOLDER = Path(".quench/progress")
BAR_SECONDS = 0.1  # A bar is redrawn at most this often.
LINE_SECONDS = 15.0  # A log gets a line at most this often.
RECORD_SECONDS = 0.5  # The record is written at most this often.


@dataclass(frozen=True)
class JobProgress:
    """How far a job is, or one of its parts. `share` is that of the work which is done, from 0 to 1."""

    what: str  # what the job does
    share: float
    seconds_left: float | None  # None: unknown
    is_part: bool = True  # False: share and seconds are those of the whole job

    @property
    def text(self) -> str:
        """What it does, and how far that is."""
        return f"{self.what}, {self.share:.0%}" if self.is_part else self.what


class Record:
    """The file that says how far a job is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = -RECORD_SECONDS  # monotonic seconds

    def write(self, progress: JobProgress, *, at_once: bool = False) -> None:
        """Replace the file, unless it was written a moment ago and this need not be seen `at_once`."""
        now = time.monotonic()
        if now - self._written < RECORD_SECONDS and not at_once:
            return
        self._written = now
        aside = self._path.with_name(f".{self._path.name}.writing")
        with suppress(OSError):  # A job must not fail because its progress can't be shown.
            aside.write_text(json.dumps(asdict(progress)), encoding="utf-8")
            os.replace(aside, self._path)  # noqa: PTH105 (as fast as it can be)

    def remove(self) -> None:
        """Delete the file, also one that a killed job left."""
        with suppress(OSError):
            self._path.unlink()


_record: ContextVar[Record | None] = ContextVar("record", default=None)


@contextmanager
def recorded(root: Path, job: str) -> Iterator[None]:
    """Write how far `job` ("quantize@Q4_K_M") is into its record below `root` while the body runs."""
    record = Record(root / FOLDER / f"{job}.json")
    with suppress(OSError):
        (root / FOLDER).mkdir(parents=True, exist_ok=True)
    record.remove()
    before = _record.set(record)
    try:
        yield
    finally:
        _record.reset(before)
        record.remove()


def current_record() -> Record | None:
    """Return the record of the job that runs in this thread; None if none is `recorded`."""
    return _record.get()


def progress_of(root: Path, job: str, since: float) -> JobProgress | None:
    """Return how far `job` is by its record; None if there is none, or none that can be read.

    A record from before `since` (seconds since 1970) is of a killed run, and counts as none.
    """
    path = root / FOLDER / f"{job}.json"
    try:
        if path.stat().st_mtime < since:
            return None
        return JobProgress(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def terminal_bar(label: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """Give `show(done)` of a bar on standard error; None if that is not a terminal."""
    from rich.progress import Progress, TextColumn

    output = console(stderr=True)
    if not output.is_terminal:
        yield None
        return
    in_sight = sys.stdout.isatty()  # Output that goes into a file can't disturb the bar.
    plain = TextColumn("{task.description}", markup=False), *Progress.get_default_columns()[1:]
    with Progress(*plain, console=output, transient=True, redirect_stdout=in_sight) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Give `advance(amount)`, to be called as work is done; it writes to standard error.

    `label` is "STAGE: WHAT". `amount` and `total` are in one unit (rows, bytes, steps).
    """
    started = shown = time.monotonic()
    done = 0
    record = current_record()

    def advance(amount: int) -> None:
        nonlocal done, shown
        done += amount
        now = time.monotonic()
        seconds_left = (now - started) * max(total - done, 0) / max(done, 1)
        share = done / max(total, 1)
        if record:
            record.write(JobProgress(label.rpartition(": ")[2], share, seconds_left))
        if now - shown < (BAR_SECONDS if show else LINE_SECONDS) and (show is None or done < total):
            return
        shown = now
        if show:
            show(done)
        else:
            print(
                f"{label}: {share:.0%} after {now - started:.0f} s, about {seconds_left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    with terminal_bar(label, total) as show:
        yield advance
