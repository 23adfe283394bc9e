"""How far the running jobs of a project are, by their lock, their log and training's metrics log.

Reads only files, so it changes nothing for a running job.
"""

import json
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.core.errors import QuenchError
from pipeline.core.locks import RUN, holder, stages_at_work
from pipeline.core.usage import usages

STEPS = Path("models/checkpoints/steps.jsonl")
TAIL = 1 << 16  # bytes at the end of a log that are read, however long it is
# what `pipeline.core.progress` writes into a log
PROGRESS = re.compile(r"(?P<what>[^\r\n]*): (?P<percent>\d+)% after \d+ s, about (?P<left>\d+) s left")


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
        if job == "train":
            progress = _of_training(root, params, started or 0.0)
        else:
            progress = _of_log(root / "logs" / f"{job.replace('@', '-')}.log", started or 0.0)
        share, left, now = progress
        usage = usage_of.get(job)
        if left is None and usage and usage.seen.seconds:  # What it took last time is the best that is known.
            left = max(0.0, usage.seen.seconds - elapsed)
        found.append(Running(job, process, elapsed, share, left, now))
    return found


def run_in_progress(root: Path) -> str | None:
    """Return the id of the process that runs or changes the project; None if there is none."""
    return holder(root / ".quench" / f"{RUN}.lock")


def _of_training(root: Path, params: Params, started: float) -> tuple[float | None, float | None, str]:
    file = root / STEPS
    if _modified(file) < started:  # It is of an earlier run: this one has made no step yet.
        return None, None, ""
    from pipeline.planning.duration import work_in  # It takes a while to import.

    rows = [*_rows(_tail(file))]
    steps = [row for row in rows if row.get("kind") == "step"]
    if not steps:
        return None, None, ""
    last = steps[-1]
    try:
        work = work_in(root, params.train)
    except QuenchError:
        work = None
    seconds = sorted(row["seconds"] for row in steps[-20:] if isinstance(row.get("seconds"), int | float))
    loss = last.get("loss")
    shown = f", loss {loss:.3g}" if isinstance(loss, int | float) else ""
    if not work or not isinstance(last.get("step"), int):
        return None, None, f"step {last.get('step')}{shown}"
    done = last["step"] / work.steps
    left = (work.steps - last["step"]) * seconds[len(seconds) // 2] if seconds else None
    return min(1.0, done), left, f"step {last['step']} of {work.steps}{shown}"


def _of_log(file: Path, started: float) -> tuple[float | None, float | None, str]:
    if _modified(file) < started:
        return None, None, ""
    lines = [*PROGRESS.finditer(_tail(file).decode(errors="replace"))]
    if not lines:
        return None, None, ""
    found = lines[-1]
    return int(found["percent"]) / 100, float(found["left"]), found["what"].strip()


def _rows(tail: bytes) -> Iterable[dict[str, Any]]:
    """Yield the complete rows at the end of a metrics log; a torn line is no row."""
    for line in tail.split(b"\n")[:-1]:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def _tail(file: Path) -> bytes:
    try:
        with file.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - TAIL))
            return log.read()
    except OSError:
        return b""


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
