"""Jobs of this project that SLURM still has, of a Snakemake that was killed: nothing is planned beside them.

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

from pipeline.core.errors import MachineError, ToolError

SUBMITTED = Path(".snakemake/slurm_logs")  # Snakemake makes it before it submits a job
LOOK_SECONDS = 10.0
ANSWER_SECONDS = 60
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def wait_for_jobs(root: Path, *, is_dry_run: bool) -> None:
    """Return when SLURM has no job of the project any more; says which ones it waits for.

    Raises `MachineError` instead of waiting in a dry run, `ToolError` if SLURM doesn't answer.
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
    """What SLURM has queued or running below `root`, in words."""
    if not (root / SUBMITTED).is_dir() or not (squeue := shutil.which("squeue")):
        return []
    command = [squeue, "--noheader", f"--user={os.getuid()}", "--format=%i|%T|%k|%j|%Z"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
        failed = (done.stderr.strip() or f"exit status {done.returncode}") if done.returncode else ""
    except subprocess.TimeoutExpired:
        failed = f"no answer within {ANSWER_SECONDS} s"
    if failed:
        raise ToolError(
            "Q-WORKFLOW-030",
            f"squeue doesn't say whether jobs of a run before are at work here ({' '.join(failed.split())}): "
            f"wait until SLURM answers; if there is none any more, remove {root / SUBMITTED}",
        )
    home = str(root.resolve())
    found = [line.split("|", 4) for line in done.stdout.splitlines() if line.count("|") >= 4]
    return [
        f"{comment.removeprefix('rule_')} (SLURM job {job}, {state.lower()})"
        for job, state, comment, name, folder in found
        # the plugin names its jobs by a UUID; others are a shell or an allocation of the user's
        if folder == home and UUID.fullmatch(name) and job != os.environ.get("SLURM_JOB_ID")
    ]
