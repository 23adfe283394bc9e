"""The view without a terminal: a line when a job starts or ends, and one a minute if nothing is said.

The jobs print their own lines themselves, but for those of jobs on other machines.
"""

import sys
import time

from pipeline.workflow.view import events
from pipeline.workflow.view.run import Job, Run
from pipeline.workflow.view.words import about, clock, end_lines, failed_lines, plan_lines

SILENT_SECONDS = 60.0  # without a line, after which one says that the work goes on


class PlainView:
    """Lines on standard error."""

    def __init__(self) -> None:
        self._said = time.monotonic()
        self._local: set[str] = set()  # jobs on this machine, which print their lines themselves

    def show(self, event: events.Event, run: Run) -> None:
        """Print what is worth a line."""
        match event:
            case events.Plan():
                self._say(*plan_lines(event))
            case events.Started():
                if event.local:
                    self._local.add(event.job)
                position = run.count("done") + run.count("failed") + len(run.jobs)
                expected = f", {about(event.seconds)}" if event.seconds is not None else ""
                how = "started" if event.local else "submitted"
                self._say(f"{event.job}: {how}, {position} of {run.count('jobs')}{expected}")
            case events.Line() | events.Warned():
                self._said = time.monotonic()  # The job has printed it.
            case events.Finished():
                how = "restored from DVC's cache" if event.how == "restored" else "done"
                self._say(f"{event.job}: {how} after {clock(event.seconds)}")
            case events.Failed():
                head, *lines = failed_lines(event)
                self._say(head, *([] if event.job in self._local else lines))
            case events.Message():
                self._say(event.text)
            case events.End():
                self._say(*end_lines(event))
            case events.Progress():
                pass  # The job has printed it, or `draw` says it.

    def draw(self, run: Run) -> None:
        """Print how far the jobs are if nothing was said for a while."""
        if run.jobs and time.monotonic() - self._said >= SILENT_SECONDS:
            self._say(*map(_state, run.jobs.values()))

    def close(self) -> None:
        """Do nothing: every line is flushed."""

    def _say(self, *lines: str) -> None:
        self._said = time.monotonic()
        for line in lines:
            print(line, file=sys.stderr, flush=True)


def _state(job: Job) -> str:
    """Return how far a job is: "train: at work for 3:00, step 4 of 40, about 9 min left"."""
    progress = f", {job.progress.text}" if job.progress else ""
    left = f", {about(job.left)} left" if job.left else ""
    return f"{job.name}: at work for {clock(job.seconds)}{progress}{left}"
