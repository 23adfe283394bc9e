"""The view on a terminal: what has ended, above a table of the stages that changes in place.

The table is drawn by `draw` only. The cursor stays visible, so a killed run leaves a usable terminal.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.core.text import console
from pipeline.workflow.view import events
from pipeline.workflow.view.run import Job, Run, Stage
from pipeline.workflow.view.words import about, clock, end_lines, failed_lines

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

BAR = 16  # columns of a bar
SHOWN_LINES = 6  # of the running jobs' logs
LEAST_LINES = 2  # on a low terminal
LAST_STAGE_LINES = 40  # of the last stage's words, which sum the run up


class LiveView:
    """A table on standard error that changes in place."""

    def __init__(self) -> None:
        self._console = _still(console(stderr=True, highlight=False))
        self._live: Live | None = None
        self._marks = _marks(self._console)

    def show(self, event: events.Event, run: Run) -> None:
        """Print what stays on the terminal."""
        match event:
            case events.Plan():
                self._open(run)
            case events.Finished():
                stage = run.stages[event.job.partition("@")[0]]
                mark = self._marks["restored" if event.how == "restored" else "done"]
                how = "  restored from DVC's cache" if event.how == "restored" else ""
                self._say(f"{mark} {event.job}  {clock(event.seconds)}{how}", "green")
                for line in run.said[-LAST_STAGE_LINES if _ends(stage, run) else -1 :]:
                    self._say(f"    {line}", "" if _ends(stage, run) else "dim")
            case events.Failed():
                head, *lines = failed_lines(event)
                mark = self._marks["stopped" if event.stopped else "failed"]
                self._say(f"{mark} {head}", "bold yellow" if event.stopped else "bold red")
                if not event.stopped:  # Otherwise the workflow's last line is what the stage said.
                    for line in lines:
                        self._say(f"  {line}")
            case events.Warned():
                self._say(f"{self._marks['warning']} {event.text}", "yellow")
            case events.Message():
                colors = {"error": "red", "warning": "yellow", "info": ""}
                self._say(event.text, colors[event.level])
            case events.End():
                self.close()
                for line in end_lines(event):
                    self._say(line, "" if line.startswith(" ") else "bold")
            case events.Started() | events.Line() | events.Progress():
                pass  # The table shows it.

    def draw(self, run: Run) -> None:
        """Draw the table again."""
        if self._live:
            self._live.update(self._table(run), refresh=True)

    def close(self) -> None:
        """Remove the table."""
        live = self._live
        self._live = None
        if live:
            live.stop()

    def _open(self, run: Run) -> None:
        from rich.live import Live

        self._live = Live(
            self._table(run), console=self._console, auto_refresh=False, transient=True, redirect_stdout=True
        )
        self._live.start(refresh=True)

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style or None, markup=False, soft_wrap=True)

    def _table(self, run: Run) -> "Group":
        """Return the stages, and the last lines of what runs, as many as the terminal has room for."""
        from rich.console import Group
        from rich.text import Text

        width = self._console.width
        room = max(self._console.height - 3, 4)
        rows = self._rows(run)
        logs = [line for job in run.jobs.values() for line in _last_lines(job, len(run.jobs))]
        kept = rows[: max(room - min(len(logs), LEAST_LINES), 1)]
        lines = [self._head(run), *kept, *(Text(f"  {line}", style="dim") for line in logs)]
        for line in lines:
            line.truncate(width - 1, overflow="ellipsis")
        return Group(*lines[: room + 1])

    def _head(self, run: Run) -> "Text":
        from rich.text import Text

        done = run.count("done") + run.count("failed")
        left = run.left
        rest = f", {about(left)} left" if left else ""
        return Text(f"{done} of {run.count('jobs')} jobs  {clock(run.seconds)}{rest}", style="bold")

    def _rows(self, run: Run) -> list["Text"]:
        """Return a line for each stage that is to run, those that run first, and one for the others."""
        from rich.text import Text

        order = {"runs": 0, "waits": 1, "failed": 2, "done": 3}
        stages = sorted(run.stages.values(), key=lambda stage: order[_state(stage, run)])
        rows = [row for stage in stages if _state(stage, run) != "done" for row in self._rows_of(stage, run)]
        if run.up_to_date:
            rows.append(Text(f"{self._marks['done']} up to date: {', '.join(run.up_to_date)}", style="dim"))
        return rows

    def _rows_of(self, stage: Stage, run: Run) -> Iterator["Text"]:
        """Yield a line for each job of a stage that runs, or one for the stage if none does."""
        from rich.text import Text

        state = _state(stage, run)
        jobs = [job for job in run.jobs.values() if job.stage == stage.name]
        width = max(map(len, [*run.stages, *(job.name for job in run.jobs.values())]))
        for job in jobs:
            row = Text(f"{self._marks[state]} {job.name:<{width}}  ", style="bold")
            self._append_job(row, job)
            yield row
        if jobs:
            return
        row = Text(f"{self._marks[state]} {stage.name:<{width}}  ", style=STYLES[state])
        waiting = stage.jobs - stage.done - stage.failed
        if state == "failed":
            row.append("failed")
        else:
            what = [f"{waiting} jobs"] if stage.jobs > 1 else []
            if stage.expected is not None:
                what.append(about(stage.expected * waiting))
            if stage.why.is_own:
                what.append(stage.why.text)
            row.append(", ".join(what))
        yield row

    def _append_job(self, text: "Text", job: Job) -> None:
        """Add a running job: its bar, how far it is, how long it has run and will run."""
        share = job.share
        if share is not None:
            full = round(share * BAR)
            text.append(self._marks["full"] * full, style="cyan")
            text.append(self._marks["rest"] * (BAR - full), style="dim")
            text.append(f" {share:4.0%}  ")
        text.append(clock(job.seconds))
        left = job.left
        if left:
            text.append(f", {about(left)} left")
        elif job.expected is not None and not (job.progress and job.progress.seconds_left is None):
            text.append(", longer than expected")
        if job.progress:
            text.append(f"  {job.progress.text}", style="dim")


STYLES = {"runs": "bold", "waits": "dim", "failed": "red", "done": "green"}


def _state(stage: Stage, run: Run) -> str:
    """Return the state of a stage: "runs", "waits", "failed" or "done"."""
    if any(job.stage == stage.name for job in run.jobs.values()):
        return "runs"
    if stage.failed:
        return "failed"
    return "done" if stage.done >= stage.jobs else "waits"


def _ends(stage: Stage, run: Run) -> bool:
    """Return True if a stage is the last of the run."""
    return stage.name == next(reversed(run.stages))


def _last_lines(job: Job, jobs: int) -> list[str]:
    """Return the last lines of a job, fewer if several run."""
    return list(job.lines)[-max(SHOWN_LINES // jobs, LEAST_LINES) :]


def _marks(output: "Console") -> dict[str, str]:
    """Return the signs of the table, in ASCII for a terminal that has no other characters."""
    names = ("runs", "waits", "failed", "stopped", "done", "restored", "warning", "full", "rest")
    is_wide = not output.options.ascii_only
    return dict(zip(names, "▶·✗■✓↺⚠━─" if is_wide else ">.x|*=!#-", strict=True))


def _still(output: "Console") -> "Console":
    """Return the console without the power to hide the cursor, which a killed process can't show again."""
    output.show_cursor = lambda show=True: False  # type: ignore[method-assign]
    return output
