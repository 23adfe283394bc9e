"""Preparation before Snakemake plans: check `params.yaml` and `data/raw`, allow one run at a time, write the
code's keys, set dates.

The first lines of the Snakefile call it, in its main process only. Messages go to stderr, because stdout
belongs to `snakemake --rulegraph` and the like.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from pipeline.config.conditions import idle
from pipeline.config.overrides import Given, from_sections, override
from pipeline.config.params import Params, read_params
from pipeline.config.trackers import need_trackers
from pipeline.core.errors import ConfigError, DataError, MachineError, QuenchError, ToolError
from pipeline.core.locks import RUN, Held, lock_file, stages_at_work, take, unusable
from pipeline.core.owner import mark_run
from pipeline.core.publish import need_disk, remove
from pipeline.core.special_files import need_plain_files
from pipeline.core.text import safe, screen
from pipeline.workflow import source_cache
from pipeline.workflow.cluster.jobs import take_failures, wait_for_jobs
from pipeline.workflow.cluster.shards import drop_stale
from pipeline.workflow.dvc_yaml import follow_settings
from pipeline.workflow.project import need_no_namesake, need_usable_path, read_settings, refresh_keys
from pipeline.workflow.remote import record_finished, use_this_python
from pipeline.workflow.stages import users
from pipeline.workflow.state.cleanup import share, working
from pipeline.workflow.state.settings import need_settings
from pipeline.workflow.state.sync_mtimes import REUSE, Settled, settle

RECORDS = 1 << 20  # bytes that Snakemake itself writes: its log, its records of stages
PATIENCE = 3.0  # seconds in which the stages of a killed run exit
# Before it plans, Snakemake has no better sign that it will run nothing.
DRY_RUN = {
    "--dry-run",
    "--dryrun",
    "--dag",
    "--rulegraph",
    "--filegraph",
    "--list",
    "--summary",
    "--lint",
    "--unlock",
}
# Flags that mean "run it, whatever its record says", also among others: -f, -F, -R, -pF, -Rtrain, --force,
# --forceall, --forcerun=train.
FORCED = re.compile(r"-[nktplDS]*[fFR].*|--force(?!-).*")
_held: list[IO[str]] = []  # the locks' open files, kept as long as the process


@screen()
def prepare(given: Any = None, root: Path = Path()) -> Params:
    """Make the folder ready for a plan and return its settings.

    A user's mistake exits with one sentence and its code.

    `given` contains Snakemake's `--config` and `--configfile` (`workflow.config_settings`). The first is
    written into params.yaml, which every stage reads.
    """
    use_this_python()
    source_cache.use_home()
    try:
        settings = _settings(given)
        need_usable_path(root)
        need_no_namesake(root)
        read = read_settings(root)
        need_disk(root.resolve(), RECORDS)
        be_the_only_one(root)
        wait_for_jobs(root, is_dry_run=is_dry_run(sys.argv[1:]))
        no_stage_at_work(root)
        if settings:  # Each change is shown.
            for change in override(root / "params.yaml", settings):
                print(f"{root / 'params.yaml'}: {change}", file=sys.stderr)
            read = read_params(root / "params.yaml")
        params = read.params
        if follow_settings(root, params, is_dry_run=is_dry_run(sys.argv[1:])):
            print(f"{root / 'dvc.yaml'}: other stages, as params.yaml asks for", file=sys.stderr)
        need_settings(root, read)
        if not is_dry_run(sys.argv[1:]):  # Otherwise the training would say so, hours later.
            need_trackers(params.train.trackers)
        for setting in idle(params):
            print(f"{root / 'params.yaml'}: {setting}", file=sys.stderr)
        with working(root):  # This removes what killed runs left.
            if not is_dry_run(sys.argv[1:]):
                drop_stale(root, params.curating)
        _held.append(share(root))
        # Files that DVC would open and wait for without end, and names that it can't record.
        need_plain_files(*(root / folder for folder in users()), recorded=(root / ".dvc").is_dir())
        _empty(root / ".snakemake" / "locks")  # The owners are dead, because we have the project's lock.
        _allow_reuse(sys.argv[1:])
        refresh_keys(root)
        if (root / ".dvc").is_dir():
            record_finished(root)
            take_failures(root)  # Failed jobs without a waiting parent are planned again.
            settled = settle(root)
            _report(settled)
            _refetch(settled.refetch, root)
            # DVC's verdict has priority over Snakemake's record of incomplete jobs.
            _empty(root / ".snakemake" / "incomplete")
        _need_raw_data(root)
    except QuenchError as error:
        print(f"snakemake: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    return params


def _settings(given: Any) -> Given:
    """Return the settings of `--config`.

    Raises `ConfigError` for an unknown key, for `--configfile`, and in a dry run, whose plan would need a
    params.yaml that it must not write.
    """
    if files := [f"--configfile {file}" for file in getattr(given, "configfiles", ())]:
        raise ConfigError(
            "Q-WORKFLOW-008",
            f"{safe(' '.join(files), 120)} would change nothing, for every stage reads params.yaml: "
            "give single settings with --config, or edit params.yaml",
        )
    settings = from_sections(getattr(given, "config", {}))
    if settings and is_dry_run(sys.argv[1:]):
        raise ConfigError(
            "Q-WORKFLOW-008",
            "--config writes into params.yaml, and a dry run writes nothing: edit params.yaml, then plan, or "
            "leave -n out",
        )
    return settings


def is_dry_run(words: list[str]) -> bool:
    """Return True if a Snakemake with these arguments runs nothing."""
    return any(word in DRY_RUN or re.fullmatch(r"-[npkfFiqt]*n[npkfFiqt]*", word) for word in words)


def _allow_reuse(words: list[str]) -> None:
    """Set `QUENCH_REUSE=1` for this run's jobs, which inherit it, unless the command line forces stages to
    run.

    Snakemake plans once. If a stage then writes the same bytes as before, its followers are run all the same.
    With this variable they check first if DVC's cache has what they would make
    (`pipeline.workflow.state.sync_mtimes.reuse`). It is not set if a user runs a stage by hand.
    """
    os.environ.pop(REUSE, None)
    if not any(FORCED.fullmatch(word) for word in words):
        os.environ[REUSE] = "1"


def be_the_only_one(root: Path) -> None:
    """Take the project's lock until this process exits, and make its jobs stop with it."""
    _held.append(take_run_lock(root))
    mark_run()


def take_run_lock(root: Path) -> IO[str]:
    """Return the lock of the process that runs or changes the project `root`, kept until the file is closed.

    Raises `MachineError` if another process has it.
    """
    try:
        return take(lock_file(RUN, root))
    except Held as other:
        raise MachineError(
            "Q-WORKFLOW-009",
            f"{root.resolve()} is in use by process {other}: wait until it is done, then run again",
        ) from None
    except OSError as error:
        raise unusable(error, root) from error


def no_stage_at_work(root: Path) -> None:
    """Raise `MachineError` if a stage runs here: started by hand, or from a killed run and still saving."""
    deadline = time.monotonic() + PATIENCE
    while at_work := stages_at_work(root):
        if time.monotonic() > deadline:
            named = " and ".join(
                f"{stage} is already running as process {pid}" for stage, pid in at_work.items()
            )
            raise MachineError(
                "Q-WORKFLOW-011",
                f"{named} in {root.resolve()}: wait until it is done, or end it, then run again",
            )
        time.sleep(0.1)


def _empty(folder: Path) -> None:
    """Remove the marks in a Snakemake folder.

    The folder stays; otherwise Snakemake would migrate its records.
    """
    for mark in folder.glob("*"):
        remove(mark)


def _report(settled: Settled) -> None:
    count = f"{len(settled.absent)} artifact{'s' if len(settled.absent) > 1 else ''}"
    for sentence, paths in (
        ("changed on disk though the date did not, so it is not used", settled.damaged),
        ("restored from DVC's cache", settled.restored),
        (
            f"`dvc pull` would bring {count} that dvc.lock names; without it they are built now",
            settled.absent,
        ),
    ):
        if paths:
            print(f"{sentence}: {', '.join(paths)}", file=sys.stderr)


def _refetch(stages: list[str], root: Path) -> None:
    """Make DVC rerun what it records but doesn't keep (base weights), and set dates again.

    A dry run only reports it.
    """
    if not stages:
        return
    print(
        f"{', '.join(stages)} has to run again first, for an output that DVC doesn't keep is missing and "
        "needed",
        file=sys.stderr,
    )
    if is_dry_run(sys.argv[1:]):
        print(
            "this dry run can't know the result: the plan below counts stages that a real run may find done",
            file=sys.stderr,
        )
        return
    command = [sys.executable, "-P", "-m", "dvc", "repro", "--single-item", "--quiet", *stages]
    if subprocess.run(command, cwd=root, stdout=sys.stderr, check=False).returncode:
        raise ToolError("Q-WORKFLOW-012", f"{', '.join(stages)} failed (see above): fix that, then run again")
    settle(root)


def _need_raw_data(root: Path) -> None:
    raw = root / "data" / "raw"
    if not any(path.is_file() for path in raw.rglob("*")):
        remedy = "run `quench data demo`"
        if (root / "data" / "raw.dvc").is_file():
            remedy = "run `dvc pull` for the recorded data"
        raise DataError("Q-WORKFLOW-013", f"{raw} holds no file: put JSONL files of chats there, or {remedy}")
