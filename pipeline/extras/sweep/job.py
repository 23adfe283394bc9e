"""Run one training of a sweep as a Snakemake job: `python -m pipeline.extras.sweep.job trial-7`.

The command runs in the sweep's folder. `trial-7` gets its settings from Optuna. `seed-3-43` trains the
settings of trial 3 with seed 43. Both train in a sub-project of that name. A job that was killed resumes from
its checkpoints when it is started again. A trial that is worse than half of the others at the same step is
stopped.
"""

import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pipeline.config.params import load_params
from pipeline.core.errors import ConfigError, MachineError, QuenchError, Stopped
from pipeline.core.interruption import Interruption
from pipeline.core.locks import Held, lock_file, stages_at_work, take
from pipeline.core.metrics_log import MetricsLog, Row
from pipeline.core.owner import end_with_owner
from pipeline.core.places import expanded
from pipeline.core.publish import read_json, remove
from pipeline.core.text import screen
from pipeline.extras.sweep.space import Space, read_space, settings_of, with_settings
from pipeline.extras.sweep.study import (
    LOG,
    SEARCH,
    SEEDS,
    Ending,
    Sweep,
    begin,
    draw,
    live,
    open_study,
    same_settings_trial,
    tell,
    trials_of,
)
from pipeline.stages.train.checkpoints import METRICS_LOG
from pipeline.subprojects.processes import ERRORS, end, open_subproject, signal_of, started

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

# The rewards of grpo may be in the second, and the last is there if training goes on from an adapter.
SHARED = ("data/tokens", "data/evaluation", "models/base", "models/previous")
# A training's error is final for a trial only if the tried settings caused it. Anything else (a damaged base,
# libraries, other processes, a checkpoint of another run) would fail with any settings.
UNTRAINABLE = {  # The settings don't fit each other, the base or the rows.
    "Q-SWEEP-003",
    *(f"Q-TRAIN-{number}" for number in ("016", "017", "040")),
    *(f"Q-MODELS-{number}" for number in ("025", "026", "034", "036", "037", "040")),
    "Q-PLANNING-008",
}
BAD = {  # The training diverged or learned nothing. The sampler has to know that.
    *(f"Q-TRAIN-{number}" for number in ("009", "010", "013", "023", "024", "025")),
    "Q-GRPO-008",
}
OTHER_FAILED = "Q-TRAIN-037"  # error of a process after another one failed; the other one reports the cause
LOOK_SECONDS = 0.5  # interval between two looks at a training
PATIENCE = 120.0  # seconds in which the job of a killed sweep may save its checkpoint
WORDS = re.compile(r"(?:trial|seed-(?P<trial>\d+))-(?P<number>\d+)")


def main(job: str, folder: Path) -> None:
    """Run `job` of the sweep in `folder` until it finishes or is pruned. Raises the error of its training,
    unless the tried settings caused it. Raises `MachineError` if another process trains it.
    """
    sweep = Sweep.opened(folder)
    with Interruption(), exclusive_job(folder / job):
        space = read_space(sweep.space)
        study, trial = claimed(sweep, space, job)
        if trial.state.is_finished():
            return
        settings = ", ".join(f"{key} {value}" for key, value in space.decoded(trial.params).items())
        print(f"{job}: {settings}", flush=True)
        same = same_settings_trial(study, trial)
        if same:
            reason = f"the same settings as {same.user_attrs['job']}, whose result this is"
            end_of = Ending(
                same.state, same.value, reason, same.user_attrs["steps"], same.user_attrs["seconds"]
            )
        else:
            end_of = ending(sweep, study, trial, job, space)
        tell(study, trial, end_of)
        value = "" if end_of.value is None else f", {space.metric} {end_of.value:.4f}"
        print(
            f"{job}: {end_of.state.name.lower()} after {end_of.steps} steps{value} {end_of.reason}",
            flush=True,
        )
        # Checkpoints and adapter are not needed: the result is in the journal.
        remove(folder / job / "models")


def ending(sweep: Sweep, study: "Study", trial: "FrozenTrial", job: str, space: Space) -> Ending:
    """Train and return the trial's end.

    Raises the error of the training, unless the tried settings caused it.
    """
    from optuna.trial import TrialState

    project = sweep.folder / job
    state = TrialState.COMPLETE
    reason = ""
    log = MetricsLog(project / "models/checkpoints" / METRICS_LOG)
    try:
        if trained(sweep, study, trial, project, space, log):
            state = TrialState.PRUNED
    except QuenchError as error:
        if error.id not in UNTRAINABLE | BAD:
            raise
        state = TrialState.PRUNED if error.id in BAD else TrialState.FAIL
        reason = error.sentence
    rows = log.rows()
    value = None
    if state is TrialState.COMPLETE:
        value = value_at_end(project, rows, space.metric)
    steps = [row["seconds"] for row in rows if row["kind"] == "step"]
    return Ending(state, value, reason, len(steps), round(sum(steps), 1))


def claimed(sweep: Sweep, space: Space, job: str) -> tuple["Study", "FrozenTrial"]:
    """Return the job's study and its trial. Begin the trial if it does not exist yet."""
    match = WORDS.fullmatch(job)
    if match is None:
        raise ConfigError("Q-SWEEP-007", f"{job} is not a job of a sweep: `quench run sweep` starts its jobs")
    search = open_study(sweep, SEARCH, space)
    trials = trials_of(search)
    if match["trial"] is None:
        if job in trials:
            return search, trials[job]
        # The first trial uses the values of params.yaml, if they are in the space: a winner has to beat them.
        first = None
        if not trials:
            first = space.encoded(settings_of(space, load_params(sweep.params)))
        return search, begin(search, job, first or draw(space, job, trials), space)
    study = open_study(sweep, SEEDS, space)
    trials_by_seed = trials_of(study)
    if job not in trials_by_seed:
        params = trials[f"trial-{match['trial']}"].params
        return study, begin(study, job, params, space, of=int(match["trial"]), seed=int(match["number"]))
    return study, trials_by_seed[job]


def trained(
    sweep: Sweep, study: "Study", trial: "FrozenTrial", project: Path, space: Space, log: MetricsLog
) -> bool:
    """Train in the sub-project `project` with the journal `log`.

    Return True if it was pruned. Raises as `run`.
    """
    settings = space.decoded(trial.params) | {"train.sample_rows": 0}
    if "seed" in trial.user_attrs:
        settings["train.seed"] = trial.user_attrs["seed"]
    values = with_settings(load_params(sweep.params), settings)
    home = values["machine"]["llama_cpp"]
    if home:
        values["machine"]["llama_cpp"] = str((sweep.root / expanded(home, "machine.llama_cpp")).resolve())
    shared = {place: sweep.root / place for place in SHARED if (sweep.root / place).exists()}
    open_subproject(project, values, shared)
    watched = live(study, trial)
    size = -1  # bytes of the log when it was read last
    pruned = False

    def worse() -> bool:
        """Report new evaluations to Optuna, in their order. Return True if one of them prunes the trial."""
        nonlocal size, pruned
        now = log.path.stat().st_size if log.path.exists() else 0
        if now == size:  # This is called twice a second, and both journals grow long.
            return pruned
        pruned = watched.should_prune()
        size = now
        last = study.get_trials(deepcopy=False)[trial.number].last_step or 0
        for row in log.rows():
            if row["kind"] == "eval" and row["step"] > last and not pruned:
                watched.report(measured(row, space.metric), row["step"])
                pruned = watched.should_prune()
        return pruned

    return run(project, worse)


def run(project: Path, worse: Callable[[], bool]) -> bool:
    """Run stage train in `project` until it exits or `worse` returns True. Return True if it was worse.
    Raises the error that it exited with.
    """
    if worse():  # The job was killed after the pruning was decided and before it was reported.
        return True
    log = project / LOG
    before = log.stat().st_size if log.exists() else 0  # output of earlier attempts
    place = ("--root", str(project), "--params", str(project / "params.yaml"))
    with log.open("ab") as output, started("pipeline", "train", *place, output=output) as process:
        while process.poll() is None:
            if worse():
                end(process)
                return True
            time.sleep(LOOK_SECONDS)
    code = process.returncode
    if worse():  # Its last evaluations may have come meanwhile.
        return True
    if code:
        raise failure(code, log, before)
    return False


def failure(code: int, log: Path, before: int) -> BaseException:
    """Return the error for a training with this exit status; its message is the training's last one. `before`
    is the offset in the log where this attempt began.
    """
    stopped = signal_of(code)
    if stopped:
        return Stopped(stopped)
    lines = log.read_bytes()[before:].decode("utf-8", errors="replace").splitlines()
    with_id = [line for line in lines if line.startswith("train: Q-")]
    causes = [line for line in with_id if not line.startswith(f"train: {OTHER_FAILED}:")]
    last = (causes or with_id or lines or [""])[-1]
    id, _, sentence = last.removeprefix("train: ").partition(": ")
    return ERRORS.get(code, MachineError)(id if sentence else "Q-SWEEP-006", sentence or f"{log}: {last}")


def measured(row: Row, metric: str) -> float:
    """Return the metric in an evaluation's row."""
    return float(row["eval_loss"] if metric == "eval_loss" else row["measures"][metric])


def value_at_end(project: Path, rows: list[Row], metric: str) -> float:
    """Return the metric of the adapter that the training kept."""
    report = read_json(project / "reports/train.json", "start the same command again")
    step = report["adapter_step"]
    return measured(
        next(row for row in reversed(rows) if row["kind"] == "eval" and row["step"] == step), metric
    )


def exclusive_job(project: Path) -> IO[str]:
    """Take the lock that keeps other processes from running the job of this folder. A job that a killed sweep
    left may save its checkpoint first. Raises `MachineError` if it does not exit.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        at_work = stages_at_work(project)
        if not at_work:
            try:
                return take(lock_file("job", project))
            except Held as other:
                at_work = {"job": str(other)}
        if time.monotonic() > deadline:
            raise MachineError(
                "Q-SWEEP-008",
                f"{project.name} is being trained by process {', '.join(at_work.values())}: wait "
                "until it is done, or end it, then run the same command again",
            )
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    end_with_owner(sys.argv[1])
    try:
        with screen():
            main(sys.argv[1], Path.cwd())
    except (QuenchError, Stopped) as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(f"{sys.argv[1]}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
