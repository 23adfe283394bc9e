"""Jobs of a project on other machines: those that a cluster still has, and the records that they leave for
the machine on which Snakemake runs.

Nothing is planned while jobs of a killed Snakemake exist. They are identified by their working directory,
which is the project's folder. Snakemake stops its jobs when it is signalled; they continue only if it was
killed or its machine was lost.

DVC's locks and `flock` mean nothing to another machine, so a job on a cluster's node neither records with DVC
nor restores from its cache. It leaves a receipt, `.quench/finished/STAGE.json`: what it read and wrote, by
hash, or why it failed. `pipeline.workflow.remote` records receipts.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pipeline.core.errors import MachineError, QuenchError, ToolError
from pipeline.core.owner import RUN
from pipeline.core.publish import remove, write_json

LOOK_SECONDS = 10.0
ANSWER_SECONDS = 60
REMOTE = "QUENCH_REMOTE"  # "1" in a job that Snakemake runs on another machine
FINISHED = Path(".quench/finished")
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class Scheduler(NamedTuple):
    """A cluster's scheduler, with the way in which Snakemake's plugin for it submits jobs.

    The plugin creates the folder `submitted` before its first job. `command` prints the user's jobs, a line
    each. `job` matches the lines of a plugin's jobs, whose names contain a UUID (others are a shell or an
    allocation of the user's), with the groups id, state, rule and folder. The environment variable `variable`
    contains a job's own id.
    """

    name: str
    submitted: str
    command: tuple[str, ...]
    job: str
    variable: str


SCHEDULERS = (
    Scheduler(
        "SLURM",
        ".snakemake/slurm_logs",
        ("squeue", "--noheader", f"--user={os.getuid()}", "--format=%i|%T|%k|%j|%Z"),
        rf"(?P<id>[^|]*)\|(?P<state>\w+)\|(?:rule_)?(?P<rule>[^|]*)\|{UUID}\|(?P<folder>.*)",
        "SLURM_JOB_ID",
    ),
)


def wait_for_jobs(root: Path, *, is_dry_run: bool) -> None:
    """Wait until no cluster has a job of the project any more, and report the jobs that it waits for.

    Raises `MachineError` instead of waiting in a dry run, `ToolError` if a scheduler doesn't answer.
    """
    is_announced = False
    while jobs := jobs_at_work(root):
        named = " and ".join(jobs)
        if is_dry_run:
            raise MachineError(
                "Q-WORKFLOW-011", f"{named} of a run before: wait until it is done, then plan again"
            )
        if not is_announced:
            print(f"waiting for {named} of a run before: Ctrl-C stops waiting", file=sys.stderr)
            is_announced = True
        try:
            time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            raise SystemExit(130) from None


def jobs_at_work(root: Path) -> list[str]:
    """Return the jobs that clusters have queued or running below `root`, in words."""
    return [job for scheduler in SCHEDULERS for job in _jobs_of(scheduler, root)]


def _jobs_of(scheduler: Scheduler, root: Path) -> list[str]:
    submitted = root / scheduler.submitted
    program = shutil.which(scheduler.command[0])
    if not submitted.is_dir() or not program:
        return []
    command = [program, *scheduler.command[1:]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
        failed = (done.stderr.strip() or f"exit status {done.returncode}") if done.returncode else ""
    except subprocess.TimeoutExpired:
        failed = f"no answer within {ANSWER_SECONDS} s"
    if failed:
        raise ToolError(
            "Q-WORKFLOW-030",
            f"{scheduler.command[0]} doesn't say whether jobs of a run before are at work here "
            f"({' '.join(failed.split())}): wait until {scheduler.name} answers; if it is gone, "
            f"remove {submitted}",
        )
    jobs = filter(None, (re.fullmatch(scheduler.job, line) for line in done.stdout.splitlines()))
    return [
        f"{job['rule']} ({scheduler.name} job {job['id']}, {job['state'].lower()})"
        for job in jobs
        if job["folder"] == str(root.resolve()) and job["id"] != os.environ.get(scheduler.variable)
    ]


class Receipt(NamedTuple):
    """The record of a finished stage.

    `inputs` and `outputs` are {path relative to the project: md5 as DVC has it} of what it read and wrote.
    """

    stage: str
    settings: str  # hash of its parameters and its code
    inputs: dict[str, str]
    outputs: dict[str, str]


class Failure(NamedTuple):
    """The record of a failed stage: its error as the user is to read it, and its exit code."""

    stage: str
    error: str
    exit_code: int


def is_remote() -> bool:
    """Return True if this process is a job on another machine than Snakemake's main process."""
    return os.environ.get(REMOTE) == "1"


def leave(left: Receipt | Failure, root: Path) -> None:
    """Write the record of a job. Raises `MachineError` if the disk is full or not writable."""
    write_json(_file(left.stage, root), left._asdict())


def leave_failure(stage: str, error: str, exit_code: int, root: Path) -> None:
    """Make Snakemake show this error of its job at the end. A stage that is run by hand leaves nothing."""
    if (is_remote() or RUN in os.environ) and (root / ".dvc").is_dir():
        with suppress(QuenchError):  # The disk is full; the log may contain it.
            leave(Failure(stage, error, exit_code), root)


def forget(stage: str, root: Path) -> None:
    """Remove the record of an earlier job of this stage."""
    with suppress(OSError):  # A read-only folder has no new record.
        remove(_file(stage, root))


def receipts(root: Path) -> list[Receipt]:
    """Return the stages that are done and not recorded yet, by name."""
    return [record for record in _records(root) if isinstance(record, Receipt)]


def take_failures(root: Path) -> list[Failure]:
    """Return the stages that failed, by name, and remove their records."""
    failures = [record for record in _records(root) if isinstance(record, Failure)]
    for failure in failures:
        forget(failure.stage, root)
    return failures


def _records(root: Path) -> list[Receipt | Failure]:
    results: list[Receipt | Failure] = []
    for file in sorted((root / FINISHED).glob("[!.]*.json")):
        # An incomplete record, or one of another version, is ignored: the stage runs again.
        with suppress(OSError, ValueError, TypeError):
            values = json.loads(file.read_text(encoding="utf-8"))
            if "error" in values:
                results.append(Failure(**values))
            else:
                results.append(Receipt(**values))
    return results


def _file(stage: str, root: Path) -> Path:
    return root / FINISHED / f"{stage}.json"
