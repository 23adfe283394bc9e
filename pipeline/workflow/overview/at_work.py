"""The running jobs of a project and their progress, by their locks and records.

Reads only files, so it changes nothing for a running job.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.locks import RUN, holder, stages_at_work
from pipeline.core.progress import progress_of
from pipeline.core.usage import usages


@dataclass(frozen=True)
class Running:
    """A running job: its process, since when (seconds), and how far it is, if that is known."""

    job: str
    process: str
    elapsed: float
    share: float | None = None  # of 1
    seconds_left: float | None = None
    now: str = ""  # what it does, in a few words


def running_jobs(root: Path) -> list[Running]:
    """Return the jobs that run below `root` now."""
    found = []
    usage_of = usages(root)
    for job, process in stages_at_work(root).items():
        started = _modified(root / ".quench" / f"{job}.lock")
        elapsed = max(0.0, time.time() - started) if started else 0.0
        progress = progress_of(root, job, started)
        usage = usage_of.get(job)
        left = None
        if usage and usage.seen.seconds:  # It may take as long as last time.
            left = max(0.0, usage.seen.seconds - elapsed)
        if progress is None:
            found.append(Running(job, process, elapsed, seconds_left=left))
        else:
            left = progress.job_seconds_left(left)
            found.append(Running(job, process, elapsed, progress.share, left, progress.what))
    return found


def run_in_progress(root: Path) -> str | None:
    """Return the id of the process that runs or changes the project; None if there is none."""
    return holder(root / ".quench" / f"{RUN}.lock")


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
