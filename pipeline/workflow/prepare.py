"""What Snakemake does before it plans: check `params.yaml` and `data/raw`, let one run in at a time, settle dates.

Called by the first lines of the Snakefile, in its main process only. Messages go to stderr: stdout belongs to
`snakemake --rulegraph` and the like.
"""

import fcntl
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from pipeline.errors import DataError, MachineError, QuenchError, ToolError
from pipeline.params import load_params
from pipeline.publish import remove
from pipeline.workflow.graphs import need_graph
from pipeline.workflow.settle import REUSE, Settled, settle

# Snakemake has no better sign, before it plans, that it will run nothing
DRY_RUN = {"--dry-run", "--dryrun", "--dag", "--rulegraph", "--filegraph", "--list", "--summary", "--lint", "--unlock"}
# flags that mean "run it, whatever its record says", also among others: -f, -F, -R, -pF, -Rtrain, --force, --forceall, --forcerun=train
FORCED = re.compile(r"-[nktplDS]*[fFR].*|--force(?!-).*")
_held: list[IO[str]] = []  # the lock's open file: the lock lasts as long as the process


def prepare(root: Path = Path()) -> None:
    """Make the folder ready for a plan; a user's mistake ends the process with one sentence and its exit code."""
    # rules say `python`: this one, also where the virtual environment is not activated
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    try:
        need_graph(root, load_params(root / "params.yaml").graph)
        be_the_only_one(root)
        _empty(root / ".snakemake" / "locks")  # nobody can be alive behind them: the project's lock is ours
        _allow_reuse(sys.argv[1:])
        if (root / ".dvc").is_dir():
            settled = settle(root)
            _tell(settled)
            _refetch(settled.refetch, root)
            _empty(root / ".snakemake" / "incomplete")  # DVC's verdict outdoes Snakemake's memory of jobs cut short
        _need_raw_data(root)
    except QuenchError as error:
        print(f"snakemake: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def _is_dry_run(words: list[str]) -> bool:
    return any(word in DRY_RUN or re.fullmatch(r"-[npkfFiqt]*n[npkfFiqt]*", word) for word in words)


def _allow_reuse(words: list[str]) -> None:
    """Set `QUENCH_REUSE=1` for this run's jobs, which inherit it, unless the command line forces stages to run.

    Snakemake plans once. Where a stage then writes what was there before, those that follow are run all the same; with
    this variable they look first whether DVC's cache has what they would make (`pipeline.workflow.settle.reuse`). It is
    not set where a user runs a stage by hand.
    """
    os.environ.pop(REUSE, None)
    if not any(FORCED.fullmatch(word) for word in words):
        os.environ[REUSE] = "1"


def be_the_only_one(root: Path) -> None:
    """Take the project's lock until this process ends; the kernel gives a dead owner's back."""
    path = root / ".quench" / "run.lock"
    path.parent.mkdir(exist_ok=True)
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise MachineError(f"{root.resolve()} is in use by process {_owner(lock)}: wait until it is done, then run again") from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    _held.append(lock)


def _owner(lock: IO[str]) -> str:
    """The holder's process id; it may need a moment to write it."""
    for _ in range(20):
        lock.seek(0)
        if (pid := lock.read()) and Path(f"/proc/{pid}").exists():
            return pid
        time.sleep(0.05)
    return pid or "unknown"


def _empty(folder: Path) -> None:
    """Remove the marks in a folder of Snakemake's; the folder stays (without it Snakemake would migrate its records)."""
    for mark in folder.glob("*"):
        remove(mark)


def _tell(settled: Settled) -> None:
    if settled.damaged:
        print(f"changed on disk though the date did not, so it is not used: {', '.join(settled.damaged)}", file=sys.stderr)
    if settled.restored:
        print(f"restored from DVC's cache: {', '.join(settled.restored)}", file=sys.stderr)
    if settled.absent:
        count = f"{len(settled.absent)} artifact{'s' if len(settled.absent) > 1 else ''}"
        print(f"`dvc pull` would bring {count} that dvc.lock names; without it they are built now: {', '.join(settled.absent)}", file=sys.stderr)


def _refetch(stages: list[str], root: Path) -> None:
    """Have DVC run again what it recorded but doesn't keep (the base's weights), then settle anew; a dry run only says so."""
    if not stages:
        return
    print(f"{', '.join(stages)} has to run again first, for an output that DVC doesn't keep is missing and needed", file=sys.stderr)
    if _is_dry_run(sys.argv[1:]):
        print("this dry run can't know the result: the plan below counts stages that a real run may find done", file=sys.stderr)
        return
    command = [sys.executable, "-m", "dvc", "repro", "--single-item", "--quiet", *stages]
    if subprocess.run(command, cwd=root, stdout=sys.stderr, check=False).returncode:
        raise ToolError(f"{', '.join(stages)} failed (see above): mend that, then run again")
    settle(root)


def _need_raw_data(root: Path) -> None:
    raw = root / "data" / "raw"
    if not any(path.is_file() for path in raw.rglob("*")):
        remedy = "run `dvc pull` for the recorded data" if (root / "data" / "raw.dvc").is_file() else "run `make demo`"
        raise DataError(f"{raw} holds no file: put JSONL files of chats there, or {remedy}")
