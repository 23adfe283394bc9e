"""The training of a job in its sub-project: watched, told to end, alone; what it ended with."""

import time
from collections.abc import Callable
from pathlib import Path

from pipeline.core.errors import MachineError, Stopped
from pipeline.core.locks import Held, lock_file, stages_at_work, take
from pipeline.core.metrics_log import Row
from pipeline.core.publish import read_json
from pipeline.subprojects.processes import ERRORS, end, signal_of, started

LOOK_SECONDS = 0.5  # between two looks at a training
PATIENCE = 120.0  # seconds in which the job of a killed sweep saves its checkpoint
OTHER_FAILED = "Q-TRAIN-037"  # what processes say of another one, which says the cause itself
LOG = "train.log"  # in a job's folder: what its training said


def run(project: Path, worse: Callable[[], bool]) -> bool:
    """Stage train in `project`, until it ends or is `worse`, which this returns. Raises what it ended
    with.
    """
    if worse():  # the job was killed between seeing that and saying so
        return True
    log = project / LOG
    before = log.stat().st_size if log.exists() else 0  # what earlier attempts said
    place = ("--root", str(project), "--params", str(project / "params.yaml"))
    with log.open("ab") as output, started("pipeline", "train", *place, output=output) as process:
        while process.poll() is None:
            if worse():
                end(process)
                return True
            time.sleep(LOOK_SECONDS)
    code = process.returncode
    if worse():  # whatever its last steps showed meanwhile
        return True
    if code:
        raise failure(code, log, before)
    return False


def failure(code: int, log: Path, before: int) -> BaseException:
    """What a training of this exit status ended with, its own last sentence in it; `before` is where in the
    log it began to write.
    """
    if stopped := signal_of(code):
        return Stopped(stopped)
    lines = log.read_bytes()[before:].decode("utf-8", errors="replace").splitlines()
    named = [line for line in lines if line.startswith("train: Q-")]
    causes = [line for line in named if not line.startswith(f"train: {OTHER_FAILED}:")]
    said = (causes or named or lines or [""])[-1]
    id, _, sentence = said.removeprefix("train: ").partition(": ")
    return ERRORS.get(code, MachineError)(id if sentence else "Q-SWEEP-006", sentence or f"{log}: {said}")


def measured(row: Row, metric: str) -> float:
    """The metric in an evaluation's row."""
    return float(row["eval_loss"] if metric == "eval_loss" else row["measures"][metric])


def value_at_end(project: Path, rows: list[Row], metric: str) -> float:
    """The metric of the adapter that the training ended with."""
    report = read_json(project / "reports/train.json", "start the same command again")
    step = report["adapter_step"]
    return measured(
        next(row for row in reversed(rows) if row["kind"] == "eval" and row["step"] == step), metric
    )


class only_job:
    """Context: no other process runs the job of this folder; one that a killed sweep left may save its
    checkpoint first. Raises `MachineError` if it does not end.
    """

    def __init__(self, project: Path) -> None:
        self.project = project

    def __enter__(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            at_work = stages_at_work(self.project)
            if not at_work:
                try:
                    self.lock = take(lock_file("job", self.project))
                    return
                except Held as other:
                    at_work = {"job": str(other)}
            if time.monotonic() > deadline:
                raise MachineError(
                    "Q-SWEEP-008",
                    f"{self.project.name} is being trained by process {', '.join(at_work.values())}: wait "
                    "until it is done, or end it, then run the same command again",
                )
            time.sleep(LOOK_SECONDS)

    def __exit__(self, *about: object) -> None:
        self.lock.close()
