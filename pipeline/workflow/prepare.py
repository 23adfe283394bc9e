"""Preparation before Snakemake plans: a list of named steps (`STEPS`), each with those that it comes after
and the reason.

The first lines of the Snakefile call it, in its main process only. Messages go to stderr, because stdout
belongs to `snakemake --rulegraph` and the like.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from pipeline.config.conditions import idle
from pipeline.config.overrides import Given, from_sections, override
from pipeline.config.params import Params, Read, read_params
from pipeline.config.trackers import need_trackers
from pipeline.core.errors import ConfigError, DataError, MachineError, QuenchError, ToolError
from pipeline.core.locks import RUN, Held, lock_file, stages_at_work, take, unusable
from pipeline.core.owner import mark_run
from pipeline.core.progress import FOLDER as PROGRESS
from pipeline.core.publish import need_disk, remove
from pipeline.core.special_files import need_plain_files
from pipeline.core.text import safe, screen
from pipeline.workflow import source_cache
from pipeline.workflow.cluster_jobs import take_failures, wait_for_jobs
from pipeline.workflow.dvc_yaml import follow_settings
from pipeline.workflow.project import need_no_namesake, need_usable_path, read_settings, refresh_keys
from pipeline.workflow.remote import record_finished, use_this_python
from pipeline.workflow.settle import REUSE, Settled, settle
from pipeline.workflow.stages import users
from pipeline.workflow.state.cleanup import share, working
from pipeline.workflow.state.settings import need_settings

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
    run = Preparation(root, given, is_dry_run(sys.argv[1:]))
    try:
        for step in STEPS:
            step.do(run)
    except QuenchError as error:
        print(f"snakemake: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    return run.params


@dataclass
class Preparation:
    """What the steps share: the project's folder, Snakemake's `given` settings, and what was read."""

    root: Path
    given: Any
    is_dry: bool  # Snakemake runs nothing
    settings: Given = field(default_factory=dict)  # those of `--config`
    params_file: Read | None = None  # params.yaml as it was read

    @property
    def read(self) -> Read:
        """params.yaml as it was read. Only the steps after `read_project` may ask for it."""
        assert self.params_file is not None
        return self.params_file

    @property
    def params(self) -> Params:
        """The project's settings."""
        return self.read.params

    @property
    def is_recorded(self) -> bool:
        """True if DVC records this project."""
        return (self.root / ".dvc").is_dir()


def use_own_places(run: Preparation) -> None:
    """Let Snakemake's jobs find this Python and a folder that can be written."""
    use_this_python()
    source_cache.use_home()


def read_project(run: Preparation) -> None:
    """Check the words of the command line, the folder's path and params.yaml."""
    run.settings = _settings(run.given)
    need_usable_path(run.root)
    need_no_namesake(run.root)
    run.params_file = read_settings(run.root)
    need_disk(run.root.resolve(), RECORDS)


def take_project(run: Preparation) -> None:
    """Take the project's lock until this process exits, and wait for jobs of runs that were killed."""
    be_the_only_one(run.root)
    wait_for_jobs(run.root, is_dry_run=run.is_dry)
    no_stage_at_work(run.root)


def write_given_settings(run: Preparation) -> None:
    """Write the settings of `--config` into params.yaml; each change is shown."""
    if not run.settings:
        return
    for change in override(run.root / "params.yaml", run.settings):
        print(f"{run.root / 'params.yaml'}: {change}", file=sys.stderr)
    run.params_file = read_params(run.root / "params.yaml")


def write_graph(run: Preparation) -> None:
    """Write dvc.yaml and params.lock.yaml as the settings ask for, and say which settings have no effect."""
    if follow_settings(run.root, run.params, is_dry_run=run.is_dry):
        print(f"{run.root / 'dvc.yaml'}: other stages, as params.yaml asks for", file=sys.stderr)
    need_settings(run.root, run.read)
    if not run.is_dry:  # Otherwise the training would say so, hours later.
        need_trackers(run.params.train.trackers)
    for setting in idle(run.params):
        print(f"{run.root / 'params.yaml'}: {setting}", file=sys.stderr)


def remove_leftovers(run: Preparation) -> None:
    """Remove what killed runs left, and share the place of temporary files with the jobs."""
    with working(run.root):
        pass  # Getting the lock is what removes them.
    _held.append(share(run.root))
    _empty(run.root / ".snakemake" / "locks")  # Their owners are dead: this process has the project's lock.
    _empty(run.root / PROGRESS)  # A stage at work that was started by hand writes its own again.


def check_files(run: Preparation) -> None:
    """Refuse files that DVC would open and wait for without end, and names that it can't record."""
    need_plain_files(*(run.root / folder for folder in users()), recorded=run.is_recorded)


def write_code_keys(run: Preparation) -> None:
    """Write the keys of the code, and say whether jobs may take their outputs from DVC's cache."""
    _allow_reuse(sys.argv[1:])
    refresh_keys(run.root)


def settle_files(run: Preparation) -> None:
    """Record what jobs on other machines finished, bring lost outputs back, judge all jobs and set dates."""
    if not run.is_recorded:
        return
    record_finished(run.root)
    take_failures(run.root)  # Failed jobs without a waiting parent are planned again.
    settled = settle(run.root)
    _report(settled)
    _refetch(settled.refetch, run.root, is_dry=run.is_dry)
    # The verdict has priority over Snakemake's record of incomplete jobs.
    _empty(run.root / ".snakemake" / "incomplete")


def need_data(run: Preparation) -> None:
    """Raise `DataError` if there is no raw data."""
    raw = run.root / "data" / "raw"
    if not any(path.is_file() for path in raw.rglob("*")):
        remedy = "run `quench data demo`"
        if (run.root / "data" / "raw.dvc").is_file():
            remedy = "run `dvc pull` for the recorded data"
        raise DataError("Q-WORKFLOW-013", f"{raw} holds no file: put JSONL files of chats there, or {remedy}")


class Step(NamedTuple):
    """A step of the preparation: its function, the steps that it comes `after`, and why."""

    do: Callable[[Preparation], None]
    after: tuple[Callable[[Preparation], None], ...] = ()
    because: str = ""


STEPS = (
    Step(use_own_places),
    Step(read_project),
    Step(
        take_project, (read_project,), "a mistake in params.yaml is said at once, and waits for no other run"
    ),
    Step(write_given_settings, (take_project,), "a stage at work reads params.yaml when it is done"),
    Step(write_graph, (write_given_settings,), "dvc.yaml and params.lock.yaml follow from params.yaml"),
    Step(remove_leftovers, (take_project,), "leftovers of a run that is alive look the same"),
    Step(check_files, (take_project,), "another run may write there"),
    Step(write_code_keys, (take_project,), "a stage at work would be recorded with the keys of other code"),
    Step(
        settle_files,
        (write_graph, remove_leftovers, check_files, write_code_keys),
        "the verdict compares the graph, the settings, the keys and all files with their records",
    ),
    Step(need_data, (settle_files,), "raw data that is lost comes back from DVC's cache"),
)


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
    (`pipeline.workflow.settle.reuse`). It is not set if a user runs a stage by hand.
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
    """Remove the files in a folder, which stays: without its own, Snakemake would migrate its records."""
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


def _refetch(stages: Sequence[str], root: Path, *, is_dry: bool) -> None:
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
    if is_dry:
        print(
            "this dry run can't know the result: the plan below counts stages that a real run may find done",
            file=sys.stderr,
        )
        return
    command = [sys.executable, "-P", "-m", "dvc", "repro", "--single-item", "--quiet", *stages]
    if subprocess.run(command, cwd=root, stdout=sys.stderr, check=False).returncode:
        raise ToolError("Q-WORKFLOW-012", f"{', '.join(stages)} failed (see above): fix that, then run again")
    settle(root)
