"""Progress of a long job: a bar on a terminal, an occasional plain line in a log. Nothing for a short job.

While a job runs, its progress also stands in `.quench/progress/JOB.json`, for `quench status` and the view of
a run. A stage of a sub-project writes into the record of the job that runs it.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pipeline.core.publish import WRITING
from pipeline.core.text import console

FOLDER = Path(".quench/progress")
# In the environment of a sub-project's stages: the record of the job that runs them.
PARENT = "QUENCH_PROGRESS"
BAR_SECONDS = 0.1  # A bar is redrawn at most this often.
LINE_SECONDS = 15.0  # A log gets a line at most this often.
RECORD_SECONDS = 0.5  # The record is written at most this often.


@dataclass(frozen=True)
class JobProgress:
    """Progress of a job or of one of its parts. `share` is the part of its work that is done, from 0 to 1."""

    what: str  # what the job does
    share: float
    seconds_left: float | None  # None: unknown
    is_part: bool = True  # False: share and seconds are those of the whole job

    @classmethod
    def at_step(cls, step: int, steps: int, words: str, seconds_left: float | None) -> "JobProgress":
        """Return the progress of a training of so many `steps`; `words` tell more of the last one."""
        return cls(f"step {step} of {steps}{words}", step / steps, seconds_left, is_part=False)

    @property
    def text(self) -> str:
        """The work in words, with its share if it is a part."""
        if self.is_part:
            return f"{self.what}, {self.share * 100:.0f} %"
        return self.what

    def job_seconds_left(self, by_forecast: float | None, age: float = 0.0) -> float | None:
        """Return the seconds that the whole job still needs, `age` seconds after this was recorded; None if
        unknown. `by_forecast` is what is expected of it otherwise.
        """
        if self.seconds_left is None:
            return by_forecast
        by_record = max(self.seconds_left - age, 0.0)
        if self.is_part and by_forecast is not None:  # The job has other parts.
            return max(by_record, by_forecast)
        return by_record


class Record:
    """File with a job's progress. If it `is_of_parent`, what is written is a part of that job."""

    def __init__(self, path: Path, *, is_of_parent: bool = False) -> None:
        self.path = path
        self._is_of_parent = is_of_parent
        self._written = -RECORD_SECONDS  # monotonic seconds

    def write(self, progress: JobProgress, *, at_once: bool = False) -> None:
        """Replace the file, unless it was written a moment ago and this need not be seen `at_once`."""
        now = time.monotonic()
        if now - self._written < RECORD_SECONDS and not at_once:
            return
        self._written = now
        if self._is_of_parent:
            progress = replace(progress, is_part=True)
        aside = self.path.with_name(f".{self.path.name}{WRITING}")
        with suppress(OSError):  # A job must not fail because its progress can't be shown.
            aside.write_text(json.dumps(asdict(progress)), encoding="utf-8")
            os.replace(aside, self.path)  # noqa: PTH105 (as fast as it can be)

    def remove(self) -> None:
        """Delete the file, also one that a killed job left."""
        with suppress(OSError):
            self.path.unlink()


_record: ContextVar[Record | None] = ContextVar("record", default=None)


@contextmanager
def recorded(root: Path, job: str) -> Iterator[None]:
    """Keep a record of the progress of `job` ("quantize@Q4_K_M") below `root` while the body runs."""
    of_parent = os.environ.get(PARENT)
    record = Record(Path(of_parent or root / FOLDER / f"{job}.json"), is_of_parent=bool(of_parent))
    with suppress(OSError):
        record.path.parent.mkdir(parents=True, exist_ok=True)
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


def record_for_children() -> dict[str, str]:
    """Return the variable by which stages that this job starts write into its record; none without one."""
    record = current_record()
    return {PARENT: str(record.path.resolve())} if record else {}


def progress_of(root: Path, job: str, since: float = 0.0) -> JobProgress | None:
    """Return the progress of `job` by its record; None if there is none, or none that can be read.

    A record from before `since` (seconds since 1970) is of a killed run, and counts as none.
    """
    path = root / FOLDER / f"{job}.json"
    try:
        if path.stat().st_mtime < since:
            return None
        values = json.loads(path.read_text(encoding="utf-8"))
        left = values["seconds_left"]
        seconds_left = None if left is None else float(left)
        return JobProgress(str(values["what"]), float(values["share"]), seconds_left, bool(values["is_part"]))
    except (OSError, ValueError, TypeError, KeyError):
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
    what = label.rpartition(": ")[2]

    def advance(amount: int) -> None:
        nonlocal done, shown
        done += amount
        now = time.monotonic()
        seconds_left = (now - started) * max(total - done, 0) / max(done, 1)
        share = done / max(total, 1)
        if record:
            record.write(JobProgress(what, share, seconds_left))
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
    if record:
        record.remove()  # What the job does next may take long, and nothing is known of it.
