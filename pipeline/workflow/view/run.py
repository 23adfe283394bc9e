"""State of a run: its stages and jobs, by Snakemake's records, the jobs' own, and the forecast."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from logging import LogRecord
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.common import LogEvent

from pipeline.core.progress import JobProgress, progress_of
from pipeline.workflow.overview.times import Forecast
from pipeline.workflow.view import events
from pipeline.workflow.view.messages import STOPPING, message_of
from pipeline.workflow.view.reasons import Reason, context
from pipeline.workflow.view.tail import Tail

KEPT = 40  # lines of a job's log
LAST_LINES = 15  # those that are shown if it fails
# Of Snakemake's count of jobs: its sum, and the rules for all of it, `everything` in a project's Snakefile.
NO_STAGES = ("all", "everything", "total")
WARNING = re.compile(r"\b(?:warn(?:ing)?|beware)\b", re.IGNORECASE)


@dataclass
class Job:
    """A job that runs."""

    name: str  # as in `python -m pipeline NAME`: "quantize@Q4_K_M"
    stage: str
    tail: Tail | None
    began: float  # monotonic seconds
    expected: float | None  # seconds
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT))
    progress: JobProgress | None = None
    progress_at: float = 0.0  # monotonic seconds
    restored: bool = False

    @property
    def seconds(self) -> float:
        """The seconds since its start."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float | None:
        """The seconds that it still needs, None if unknown: by its record, else by the forecast."""
        by_forecast = None if self.expected is None else max(self.expected - self.seconds, 0.0)
        if self.progress is None:
            return by_forecast
        return self.progress.job_seconds_left(by_forecast, time.monotonic() - self.progress_at)

    @property
    def share(self) -> float | None:
        """The share of it that is done, from 0 to 1, None if unknown."""
        if self.progress and not self.progress.is_part:
            return self.progress.share
        left = self.left
        if self.expected is not None and left is not None:
            return min(self.seconds / max(self.seconds + left, 0.001), 0.99)
        return self.progress.share if self.progress else None


@dataclass
class Stage:
    """A stage that is to run, and what has become of its jobs."""

    name: str
    jobs: int
    expected: float | None  # seconds of one of its jobs
    why: Reason = field(default_factory=Reason)
    done: int = 0
    restored: int = 0
    failed: int = 0

    @property
    def planned(self) -> events.Planned:
        """The stage as a part of a plan."""
        seconds = None if self.expected is None else round(self.expected * self.jobs, 3)
        return events.Planned(self.name, self.jobs, seconds, self.why.text, self.why.is_own)


class Run:
    """The run in the folder `root`. `take` and `look` yield what has happened as events.

    `foresee` calls `know` before the plan is an event, if that has to have its times.
    """

    def __init__(self, root: Path, foresee: Callable[[], None] | None = None) -> None:
        self.root = root
        self._foresee = foresee
        self.began = time.monotonic()
        self.forecast = Forecast()
        self.stages: dict[str, Stage] = {}
        self.jobs: dict[int, Job] = {}  # those that run
        self.up_to_date: list[str] = []
        self.said: list[str] = []  # last lines of the job that ended last
        self.is_planned = False
        self.is_stopping = False  # by the user's Ctrl-C, or SIGTERM

    @property
    def seconds(self) -> float:
        """The seconds since its start."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float | None:
        """The seconds of the jobs that are not done, one after the other; None if one is unknown."""
        total = 0.0
        for stage in self.stages.values():
            running = [job for job in self.jobs.values() if job.stage == stage.name]
            waiting = stage.jobs - stage.done - stage.failed - len(running)
            needs = [job.left for job in running]
            if waiting > 0:
                needs.append(None if stage.expected is None else waiting * stage.expected)
            if None in needs:
                return None
            total += sum(need for need in needs if need is not None)
        return total

    def count(self, what: str) -> int:
        """Return the sum of a number of all stages: "jobs", "done", "restored", "failed"."""
        return sum(getattr(stage, what) for stage in self.stages.values())

    def take(self, record: LogRecord) -> Iterator[events.Event]:
        """Yield what a record of Snakemake's says."""
        kind = getattr(record, "event", None)
        said: Mapping[str, Any] = vars(record)
        if kind == LogEvent.RUN_INFO and not self.is_planned:
            yield self._plan(said["stats"])
        elif kind == LogEvent.JOB_INFO and said["output"]:
            yield self._start(said)
        elif kind in (LogEvent.JOB_FINISHED, LogEvent.JOB_ERROR):
            number = said["job_id"] if kind == LogEvent.JOB_FINISHED else said["jobid"]
            if number in self.jobs:
                yield from self._look_at(self.jobs[number], last=True)
                yield self._end_job(number, failed=kind == LogEvent.JOB_ERROR, logs=said.get("log") or [])
        elif kind in (None, LogEvent.ERROR):
            message = message_of(record)
            is_repeated = False
            if str(record.msg).startswith(STOPPING):
                is_repeated = self.is_stopping  # Snakemake says it at every look for jobs.
                self.is_stopping = True
            if message and not is_repeated:
                yield message

    def look(self) -> Iterator[events.Event]:
        """Yield what the logs of the running jobs say that they did not say before."""
        for job in list(self.jobs.values()):
            yield from self._look_at(job)

    def know(self, forecast: Forecast) -> None:
        """Use a forecast for the jobs that have no better one."""
        self.forecast = forecast
        for stage in self.stages.values():
            stage.expected = forecast.of_stage(stage.name)
        for job in self.jobs.values():
            job.expected = forecast.seconds(job.name)

    def end(self) -> events.End:
        """Return the end of the run."""
        from pipeline.workflow.view.advice import next_steps

        done = self.count("done")
        failed = self.count("failed")
        missing = max(self.count("jobs") - done - failed, 0)
        advice = next_steps(self.root, list(self.stages), is_complete=not missing and not failed)
        return events.End(round(self.seconds, 3), done, self.count("restored"), failed, missing, advice)

    def _plan(self, stats: Mapping[str, int]) -> events.Plan:
        self.is_planned = True
        self.began = time.monotonic()
        counts = {name: count for name, count in stats.items() if name not in NO_STAGES}
        found = context(self.root, counts)  # Soon, because the first jobs run meanwhile.
        if self._foresee:
            self._foresee()
        for name in found.order:
            expected = self.forecast.of_stage(name)
            self.stages[name] = Stage(name, counts[name], expected, found.why.get(name, Reason()))
        self.up_to_date = found.up_to_date
        return events.Plan([stage.planned for stage in self.stages.values()], self.up_to_date)

    def _start(self, said: Mapping[str, Any]) -> events.Started:
        stage = said["rule_name"]
        item = "-".join(map(str, said["wildcards"].values()))
        name = f"{stage}@{item}" if item else stage
        log = next(iter(said["log"]), "")
        tail = Tail(self.root / log, said["created"]) if log else None
        expected = self.forecast.seconds(name)
        self.jobs[said["jobid"]] = Job(name, stage, tail, time.monotonic(), expected)
        self.stages.setdefault(stage, Stage(stage, 1, expected))  # one that a checkpoint of the user's added
        return events.Started(name, stage, log, expected, bool(said["local"]))

    def _look_at(self, job: Job, *, last: bool = False) -> Iterator[events.Event]:
        for line in job.tail.lines(last=last) if job.tail else ():
            job.lines.append(line)
            if WARNING.search(line):
                yield events.Warned(job.name, line)
                continue
            job.restored = job.restored or is_restored(line, job.name)
            yield events.Line(job.name, line)
        progress = progress_of(self.root, job.name)
        if progress != job.progress:
            job.progress = progress
            job.progress_at = time.monotonic()
            if progress:
                yield events.Progress(job.name, round(progress.share, 4), job.left, progress.text)

    def _end_job(self, number: int, *, failed: bool, logs: list[str]) -> events.Event:
        job = self.jobs.pop(number)
        stage = self.stages[job.stage]
        seconds = round(job.seconds, 3)
        self.said = list(job.lines)
        if failed:
            stage.failed += 1
            # A signal may have been sent to the job alone.
            is_stopped = self.is_stopping or any(f"{job.name}: stopped by SIG" in line for line in self.said)
            lines = self.said[-1 if is_stopped else -LAST_LINES :]
            return events.Failed(job.name, seconds, next(iter(logs), ""), lines, is_stopped)
        stage.done += 1
        stage.restored += job.restored
        return events.Finished(job.name, "restored" if job.restored else "ran", seconds)


def is_restored(line: str, job: str) -> bool:
    """Return True if a job says by this line that its outputs came from DVC's cache."""
    from pipeline.workflow.settle import RESTORED

    return line == f"{job}: {RESTORED}"
