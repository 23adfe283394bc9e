"""Jobs of this project that a cluster still has, of a killed Snakemake: nothing is planned beside them.

They are told by their working directory, which is the project's folder. Snakemake ends its jobs when it is
told to end; only where it was killed, or its machine was lost, they go on.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from pipeline.core.errors import MachineError, ToolError

LOOK_SECONDS = 10.0
ANSWER_SECONDS = 60
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class Scheduler(NamedTuple):
    """A cluster's scheduler, as Snakemake's plugin for it submits jobs.

    The plugin makes the folder `submitted` before its first job. `command` prints the user's jobs, a line for
    each; `job` finds in it those of a plugin, whose names have a UUID (others are a shell or an allocation of
    the user's), with the groups id, state, rule and folder. A job's own id is in the variable `variable`.
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
    """Return when no cluster has a job of the project any more; says which ones it waits for.

    Raises `MachineError` instead of waiting in a dry run, `ToolError` if a scheduler doesn't answer.
    """
    said = False
    while jobs := jobs_at_work(root):
        named = " and ".join(jobs)
        if is_dry_run:
            raise MachineError(
                "Q-WORKFLOW-011", f"{named} of a run before: wait until it is done, then plan again"
            )
        if not said:
            print(f"waiting for {named} of a run before: Ctrl-C stops waiting", file=sys.stderr)
            said = True
        try:
            time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            raise SystemExit(130) from None


def jobs_at_work(root: Path) -> list[str]:
    """What clusters have queued or running below `root`, in words."""
    return [job for scheduler in SCHEDULERS for job in _jobs_of(scheduler, root)]


def _jobs_of(scheduler: Scheduler, root: Path) -> list[str]:
    submitted, program = root / scheduler.submitted, shutil.which(scheduler.command[0])
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
            f"({' '.join(failed.split())}): wait until {scheduler.name} answers; if there is none any more, "
            f"remove {submitted}",
        )
    jobs = filter(None, (re.fullmatch(scheduler.job, line) for line in done.stdout.splitlines()))
    return [
        f"{job['rule']} ({scheduler.name} job {job['id']}, {job['state'].lower()})"
        for job in jobs
        if job["folder"] == str(root.resolve()) and job["id"] != os.environ.get(scheduler.variable)
    ]
