"""How far the running jobs of a project are, by their lock, their log and training's metrics log.

Reads only files, so it changes nothing for a running job.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.params import Params
from pipeline.core.errors import QuenchError
from pipeline.core.locks import RUN, holder, stages_at_work
from pipeline.core.usage import usages
from pipeline.workflow.overview.progress import STEPS, Far, from_log, from_steps, is_past


@dataclass(frozen=True)
class Running:
    """A running job: its process, since when (seconds), and how far it is, if that is known."""

    job: str
    process: str
    elapsed: float
    share: float | None = None  # of 1
    seconds_left: float | None = None
    now: str = ""  # what it does, in a few words


def running_jobs(root: Path, params: Params) -> list[Running]:
    """Return the jobs that run below `root` now."""
    found = []
    usage_of = usages(root)
    for job, process in stages_at_work(root).items():
        started = _modified(root / ".quench" / f"{job}.lock")
        elapsed = max(0.0, time.time() - started) if started else 0.0
        far = _far(root, params, job, started)
        left = far.left if far else None
        usage = usage_of.get(job)
        if left is None and usage and usage.seen.seconds:  # What it took last time is the best that is known.
            left = max(0.0, usage.seen.seconds - elapsed)
        share = far.share if far else None
        found.append(Running(job, process, elapsed, share, left, far.what if far else ""))
    return found


def run_in_progress(root: Path) -> str | None:
    """Return the id of the process that runs or changes the project; None if there is none."""
    return holder(root / ".quench" / f"{RUN}.lock")


def _far(root: Path, params: Params, job: str, started: float) -> Far | None:
    """Return how far a job is that `started` then. What is older is of an earlier run."""
    log = root / "logs" / f"{job.replace('@', '-')}.log"
    by_log = from_log(log) if _modified(log) >= started else None
    if job != "train" or _modified(root / STEPS) < started:
        return by_log
    steps = by_log.steps if by_log else 0
    by_steps = from_steps(root, steps or _planned_steps(root, params))
    if by_log and by_steps and not is_past(by_steps, by_log):
        return by_log
    return by_steps or by_log


def _planned_steps(root: Path, params: Params) -> int:
    from pipeline.planning.duration import work_in  # It takes a while to import.

    try:
        work = work_in(root, params.train)
    except QuenchError:
        return 0
    return work.steps if work else 0


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
