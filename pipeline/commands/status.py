"""Show the state of a project: every stage and why it is out of date, what a run would do, the newest run's
figures, its page, and what is served.

Reads params.yaml, dvc.yaml, dvc.lock, the files that they name, and reports/. Changes nothing.

    quench status
    quench status --diff train
    quench status --open
"""

import json
import shlex
import sys
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.commands.served import Served, server
from pipeline.config.params import Params
from pipeline.config.sections.shipping import Acceptance
from pipeline.core.errors import ConfigError, DataError, QuenchError
from pipeline.core.text import listed, plural, safe
from pipeline.core.units import size_text
from pipeline.core.usage import FOLDER as USAGE
from pipeline.workflow.graph_source import LAST
from pipeline.workflow.overview.at_work import Running, run_in_progress, running_jobs
from pipeline.workflow.overview.causes import in_words
from pipeline.workflow.overview.history import history
from pipeline.workflow.overview.states import Job, Overview, State, overview
from pipeline.workflow.overview.times import Forecast, forecast
from pipeline.workflow.project import changed_code, installed_version, is_project, version_of
from pipeline.workflow.stage_command import need_stage
from pipeline.workflow.state.lockfile import in_force

if TYPE_CHECKING:
    from pipeline.stages.train.run import Unfinished

PAGE = Path("reports/index.html")
SHAPE = 1  # version of the JSON, raised if a field changes its meaning
NAMED = 3  # jobs that one line names
MINUTE = 60
HOUR = 3600


@dataclass(frozen=True)
class Status:
    """All that is known of a project."""

    root: Path
    seen: Overview
    running: list[Running]
    served: Served | None
    expected: Mapping[str, float | None]  # seconds of the jobs that a run would run
    accepted: Mapping[str, Acceptance]  # changes that were declared to be without effect, by job
    stopped: "Unfinished | None"  # the training that a run would do, if it was stopped

    @property
    def ahead(self) -> list[str]:
        """Return the jobs that are still to begin."""
        at_work = {job.job for job in self.running}
        return [name for name in self.seen.would_run if name not in at_work]

    @property
    def seconds_ahead(self) -> float | None:
        """Return how long that will take, with what is left of running jobs; None if nothing of it is known.

        Jobs `without_time` don't count.
        """
        parts = [self.expected.get(name) for name in self.ahead]
        parts += [job.seconds_left for job in self.running]
        known = [part for part in parts if part is not None]
        return sum(known) if known else None

    @property
    def without_time(self) -> list[str]:
        """Return the jobs ahead of which neither a run nor the plan says how long they take."""
        return [name for name in self.ahead if self.expected.get(name) is None]

    @property
    def page(self) -> Path:
        """Return the path of the report, which need not exist."""
        return (self.root / PAGE).resolve()

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values; docs/status.md has their meaning."""
        report = self.seen.job(LAST)
        return {
            "shape": SHAPE,
            "root": str(self.root.resolve()),
            "jobs": [job_as_json(job) for job in self.seen.jobs],
            "off": dict(self.seen.off),
            "would_run": list(self.seen.would_run),
            "seconds": self.seconds_ahead,
            "without_time": self.without_time,
            "running": [asdict(job) for job in self.running],
            "accepted": {job: change.model_dump() for job, change in self.accepted.items()},
            "figures": figures(self.root),
            "page": {
                "path": str(self.page),
                "exists": self.page.exists(),
                "state": report.state if report else None,
            },
            "served": asdict(self.served) if self.served else None,
        }


def status_of(params: Params, root: Path) -> Status:
    """Return the status of the project `root`. Raises `DataError` if dvc.lock is damaged."""
    seen = overview(root, params)
    known = forecast(root, params) if seen.would_run else Forecast()
    expected = {name: known.seconds(name) for name in seen.would_run}
    return Status(
        root,
        seen,
        running_jobs(root),
        server(params, root),
        expected,
        in_force(root, params),
        _stopped_training(root, params) if "train" in seen.would_run else None,
    )


def _stopped_training(root: Path, params: Params) -> "Unfinished | None":
    """Return the training that was stopped and has a checkpoint; None if the stage itself can't read it."""
    from pipeline.stages.train.run import unfinished  # A fresh project doesn't need it.

    # Looking for the device would import PyTorch, and what depends on it is not compared.
    with suppress(QuenchError, KeyError):
        return unfinished(root / "models/checkpoints", params.training_on("cpu"))
    return None


def main(params: Params, root: Path, *, as_json: bool) -> None:
    """Print the status of `root`."""
    status = status_of(params, root)
    if as_json:
        print(json.dumps(status.as_json(), indent=2, ensure_ascii=False))
        return
    for line in lines_of(status):
        print(line)


def lines_of(status: Status) -> Iterator[str]:
    """Yield the lines that are printed of a status."""
    yield str(status.root.resolve())
    yield from stage_lines(status.seen, status.running)
    if status.stopped and "train" in status.ahead:
        yield stopped_line(status.stopped)
    yield from off_lines(status.seen.off)
    for job, change in status.accepted.items():
        yield f"  accepted: {safe(f'{job}: {change.what} ({change.why})')}"
    yield ""
    yield from upgrade_lines(status.root)
    yield plan_line(status)
    yield from figure_lines(status.root)
    yield page_line(status)
    yield from status.served.lines() if status.served else ["nothing is served: `quench serve` does"]


def stopped_line(training: "Unfinished") -> str:
    """Return what a run does about a training that was stopped."""
    if not training.changed:
        return f"  train was stopped: a run goes on from checkpoint-{training.step}"
    changed = safe(listed(training.changed), 200)
    return (
        f"  train was stopped after step {training.step}, and {changed} changed since: "
        "put that back, or start again with `python -m pipeline train --no-resume`"
    )


def stage_lines(seen: Overview, running: Sequence[Running]) -> Iterator[str]:
    """Yield a line for each job, or one for jobs of a stage in the same state for the same reason."""
    at_work = {job.job: job for job in running}
    groups = [
        [*jobs]
        for _, jobs in groupby(seen.jobs, key=lambda job: (job.stage, job.state, job.causes, job.restorable))
    ]
    width = max((len(_name(jobs)) for jobs in groups), default=0)
    for jobs in groups:
        job = jobs[0]
        said = why(job)
        if job.name in at_work:
            said = running_text(at_work[job.name])
        elif not said and job.seconds is not None:
            said = f"took {duration(sum(job.seconds or 0 for job in jobs))}"
        yield f"  {_name(jobs):<{width}}  {job.state:<10}  {said}".rstrip()


def _name(jobs: Sequence[Job]) -> str:
    if len(jobs) == 1:
        return jobs[0].name
    return f"{jobs[0].stage} ({plural(len(jobs), 'job')})"


def why(job: Job) -> str:
    """Return the reasons for a job's state on one line."""
    if job.state == State.MISSING and job.restorable:
        return f"{in_words(job.causes)}: a run brings it back from DVC's cache"
    if job.state == State.FINISHED:
        return "by a job on another machine; the next run records it"
    if job.state == State.UNRECORDED:
        return "without DVC in this folder nothing says of which settings it is"
    return in_words(job.causes)


def running_text(job: Running) -> str:
    """Return how far a running job is."""
    share = "" if job.share is None else f", {job.share:.0%}"
    now = f": {safe(job.now, 60)}" if job.now else ""
    left = "" if job.seconds_left is None else f", about {duration(job.seconds_left)} left"
    return f"for {duration(job.elapsed)} as process {job.process}{now}{share}{left}"


def off_lines(off: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each reason why stages are not asked for."""
    for reason in dict.fromkeys(off.values()):
        names = [name for name, other in off.items() if other == reason]
        yield f"  not asked for: {', '.join(names)} ({reason})"


def upgrade_lines(root: Path) -> Iterator[str]:
    """Yield a line if another version than the installed one made the project, which then runs nothing."""
    if is_project(root) and changed_code(root):
        yield (
            f"Quench {version_of(root)} made this project, and {installed_version()} is installed: nothing "
            "runs before `quench doctor upgrade`"
        )


def plan_line(status: Status) -> str:
    """Return what a run would do, and how long that will take."""
    seen = status.seen
    number = f"{len(status.ahead)} of {plural(len(seen.jobs), 'job')}"
    seconds = status.seconds_ahead
    time = ""
    if seconds is not None:
        unknown = f" without {_some(status.without_time)}" if status.without_time else ""
        time = f", about {duration(seconds)}{unknown}"
    process = run_in_progress(status.root)
    if process or status.running:
        who = f"process {process} runs here" if process else "a stage runs here by itself"
        return f"{who}: {number} are still to begin{time}"
    if not seen.would_run:
        return "a run has nothing to do"
    return f"a run would do {number}{time}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def figures(root: Path) -> dict[str, Any] | None:
    """Return the figures of the newest report, as in reports/quants.json; None without one."""
    try:
        values = json.loads((root / "reports/quants.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def figure_lines(root: Path) -> Iterator[str]:
    """Yield a small table of the newest report's figures."""
    values = figures(root)
    if values is None:
        return
    recommended = values.pop("recommended", None)
    models = {name: row for name, row in values.items() if isinstance(row, dict)}
    made = root / USAGE / f"{LAST}.json"
    verdict = f"{recommended} is recommended" if recommended else "the gate refuses every level"
    yield f"newest report{_date_of(made)}: {verdict}"
    width = max(map(len, models), default=0)
    for name, row in models.items():
        cells = (
            size_text(row["bytes"]) if "bytes" in row else "",
            _cell("score", row.get("task_score"), 100, 1),
            _cell("KLD", row.get("kld_mean"), 1, 4),
            row.get("gate") or "",
        )
        yield f"  {safe(name):<{width}}  {cells[0]:>9}  {cells[1]:<11}  {cells[2]:<10}  {cells[3]}".rstrip()


def _cell(name: str, value: Any, factor: float, digits: int) -> str:
    return f"{name} {value * factor:.{digits}f}" if isinstance(value, int | float) else ""


def _date_of(file: Path) -> str:
    try:
        return f" ({datetime.fromtimestamp(file.stat().st_mtime).astimezone():%Y-%m-%d %H:%M})"
    except OSError:
        return ""


def page_line(status: Status) -> str:
    """Return where the report is, and why it is out of date if it is."""
    page = status.page
    job = status.seen.job(LAST)
    if not page.exists():
        return f"{page} is missing: run `snakemake`, whose stage report makes it"
    if job is None or job.state in (State.FRESH, State.UNRECORDED, State.FINISHED):
        return str(page)
    return f"{page} is of an earlier state ({why(job) or job.state}): `snakemake` makes it again"


def open_page(root: Path) -> None:
    """Show the report in the browser; print how to see it if this machine has none.

    Raises `DataError` if there is no report.
    """
    page = (root / PAGE).resolve()
    if not page.exists():
        raise DataError("Q-CORE-001", f"{page} is missing: run `snakemake`, whose stage report makes it")
    print(page)
    try:
        shown = webbrowser.get().open(page.as_uri())
    except webbrowser.Error:
        shown = False
    if not shown:
        print(
            "no browser here: open that file elsewhere, or run `python -m http.server --bind 127.0.0.1 -d "
            f"{shlex.quote(str(page.parent))}` and open http://127.0.0.1:8000",
            file=sys.stderr,
        )


def accept(root: Path, stage: str, why: str) -> None:
    """Declare what changed for a stage to be without effect, and print what that is."""
    from pipeline.workflow import accepted

    need_stage(stage.partition("@")[0])
    for job, what in accepted.accept(root, stage, why).items():
        print(f"{job}: {safe(what)}: accepted, so it doesn't run again for that")
    print("The next run makes report and card again, which say so; `--no-accept` takes it back.")


def take_back(root: Path, stage: str) -> None:
    """Take back what was accepted for a stage."""
    from pipeline.workflow import accepted

    need_stage(stage.partition("@")[0])
    jobs = accepted.undo(root, stage)
    print(f"{', '.join(jobs)}: no change is accepted any more")


def print_history(root: Path, *, as_json: bool) -> None:
    """Print the runs that Git has a record of, newest first: when, what changed, and the figures."""
    runs = history(root)
    if as_json:
        print(json.dumps({"shape": SHAPE, "runs": [asdict(run) for run in runs]}, indent=2))
        return
    if not runs:
        print("no run is recorded: `snakemake` runs the pipeline, `git commit dvc.lock` keeps its record")
    for run in runs:
        when = f"{datetime.fromtimestamp(run.when).astimezone():%Y-%m-%d %H:%M}"
        print(
            f"{when}  {f'{run.commit[:9]}  {safe(run.subject, 60)}' if run.commit else 'not committed yet'}"
        )
        if run.changed:
            print(f"  changed: {safe('; '.join(run.changed))}")
        print(f"  {_metrics_text(run.metrics)}")


def _metrics_text(metrics: Mapping[str, Any] | None) -> str:
    if metrics is None:
        return "figures: DVC's cache has none of this commit (`dvc fetch --all-commits` brings them)"
    scores = metrics.get("score") if isinstance(metrics.get("score"), dict) else {}
    parts = [f"score {', '.join(f'{name} {value}' for name, value in scores.items())}"] if scores else []
    if "loss" in metrics:
        parts.append(f"last loss {metrics['loss']}")
    return safe("; ".join(parts) or "no figures")


def duration(seconds: float) -> str:
    """Return a time in words: "40 s", "12 min", "3 h 05 min"."""
    whole = round(seconds)
    if whole < 2 * MINUTE:
        return f"{whole} s"
    minutes = round(whole / MINUTE)
    if minutes < 2 * MINUTE:
        return f"{minutes} min"
    return f"{minutes // MINUTE} h {minutes % MINUTE:02d} min"


def diff(params: Params, root: Path, stage: str, *, as_json: bool) -> None:
    """Print all that makes a stage, or one of its jobs ("quantize@Q4_K_M"), out of date.

    Raises `ConfigError` if there is no such stage.
    """
    need_stage(stage.partition("@")[0])
    seen = overview(root, params)
    jobs = seen.of_stage(stage)
    if as_json:
        print(json.dumps({"shape": SHAPE, "jobs": [job_as_json(job) for job in jobs]}, indent=2))
        return
    if not jobs:
        reason = seen.off.get(stage.partition("@")[0], "these settings make no such job")
        raise ConfigError("Q-WORKFLOW-021", f"stage {safe(stage, 80)} has nothing to do: {reason}")
    for job in jobs:
        print(f"{job.name}: {job.state}")
        for cause in job.causes:
            print(f"  {safe(cause.text(named=len(cause.files) or 1))}")


def job_as_json(job: Job) -> dict[str, Any]:
    """Return a job as plain values."""
    return {
        "name": job.name,
        "stage": job.stage,
        "state": job.state,
        "causes": [asdict(cause) | {"text": cause.text()} for cause in job.causes],
        "restorable": job.restorable,
        "seconds": job.seconds,
    }
