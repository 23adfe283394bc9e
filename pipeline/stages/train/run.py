"""A training run as seen by one of its processes, and the check that existing checkpoints belong to it.

An interrupted run resumes only if it would end in the same bytes. If something else changed, resuming would
mix two runs, and starting again would lose the first one. So neither happens by itself.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.methods import METHODS, ROUNDS
from pipeline.config.sections import Training
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.interruption import Interruption
from pipeline.core.jsonl import parse_object
from pipeline.core.metrics_log import MetricsLog
from pipeline.core.publish import remove, write_json
from pipeline.models.own_targets import fitted
from pipeline.stages.train.checkpoints import (
    TORN,
    checkpoints_in,
    defect,
    newest_verified,
    read_notes,
    set_later_aside,
    step_of,
)
from pipeline.stages.train.record import MACHINE, differences, run_id

RUN = "run.json"
STATE = "trainer_state.json"  # file of a checkpoint with the progress of the run
RESTART = "start again with `python -m pipeline train --no-resume`"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job: rows, base, settings, and the output folders. `group` is the group of processes that
    share the work (`pipeline.stages.train.distributed.group.Group`), or None if there is only this one.
    """

    tokens: Path
    base: Path
    adapter: Path
    checkpoints: Path
    tensorboard: Path
    settings: Training
    group: Any = None

    @classmethod
    def below(cls, root: Path, settings: Training, group: Any) -> "Job":
        """Return the job of stage train on the project `root`, with its targets checked. Raises the errors
        of `fitted`.
        """
        base = root / "models/base"
        return cls(
            tokens=root / "data/tokens",
            base=base,
            adapter=root / "models/adapter",
            checkpoints=root / "models/checkpoints",
            tensorboard=root / "reports/tensorboard",
            settings=fitted(settings, base),
            group=group,
        )

    @property
    def leads(self) -> bool:
        """True in the process that writes."""
        return self.group is None or bool(self.group.leads)


@dataclass(frozen=True, kw_only=True)
class Run(Job):
    """A job that has begun: its `record` (`pipeline.stages.train.record.describe`), and the checkpoint that
    it resumes from, or None if it starts from nothing.
    """

    record: dict[str, Any]
    start: Path | None
    tokenizer: Any
    interruption: Interruption
    metrics_log: MetricsLog

    def note(self, file: Path, values: dict[str, Any]) -> None:
        """Write values that all processes have measured, for a run that resumes. Do nothing if another
        process leads.
        """
        if self.leads:
            write_json(file, values)


def find_start(
    folder: Path, record: dict[str, Any], *, resume: bool | Path, replay: bool = False
) -> Path | None:
    """Return the checkpoint in `folder` to resume from, or None for a start from nothing. The folder then
    belongs to this run.

    `resume` may be a chosen checkpoint. A start from nothing (without `resume`, or after a *finished* run
    with other inputs) empties the folder. With `resume` the files that identify their own inputs stay, with
    `replay` the rounds stay. Raises `ConfigError` if there is an unfinished run with other inputs, settings
    or libraries, and for a choice that is not a checkpoint. Nothing is deleted then.
    """
    previous = _read(folder / RUN) if resume else None
    if resume and previous is None and checkpoints_in(folder):
        raise ConfigError(
            "Q-TRAIN-028",
            f"{folder} holds checkpoints without a {RUN}, so they can't be matched to a run (another "
            f"version's?): {RESTART}, which deletes them",
        )
    changed = list(differences(previous["record"], record)) if previous else []
    hard = [text for key, text in changed if key not in MACHINE]
    if isinstance(resume, Path):
        start: Path | None = _chosen(folder, resume, record, hard)
    else:
        is_replaced = bool(previous and hard and previous["finished"])
        start = newest_verified(folder) if previous and not is_replaced else None
        if start is not None and hard:
            raise ConfigError(
                "Q-TRAIN-029",
                f"{folder} holds an unfinished run (step {step_of(start)}), and since then "
                f"{'; '.join(hard)} changed: "
                f"put that back to resume it, or {RESTART}",
            )
    if start is None:
        method = record["settings"].get("method")
        keeps = METHODS[method].keeps if method in METHODS else ()
        if resume:
            kept = {TORN, *keeps}
        elif replay:
            kept = {ROUNDS}
        else:
            kept = set()
        for path in folder.glob("*"):
            if path.name not in kept:
                remove(path)
    for _, text in changed if start else []:
        print(
            f"train: {text} changed: the run resumes, but not to the very bytes of an unbroken one",
            file=sys.stderr,
        )
    write_json(folder / RUN, {"record": record, "finished": False})
    return start


def _chosen(folder: Path, given: Path, record: dict[str, Any], hard: list[str]) -> Path:
    """Return the checkpoint that a user named (its path, or its name in `folder`), verified and of this run.
    Later ones are set aside.

    Raises `ConfigError` for one of another place or run, or one whose best adapter is gone, `DataError` for a
    torn one. Nothing is moved then.
    """
    checkpoints = {path.resolve(): path for path in checkpoints_in(folder)}
    others = "there is none, so leave --resume out"
    if checkpoints:
        others = f"choose one of {', '.join(map(str, checkpoints.values()))}"
    start = checkpoints.get(given.resolve()) or checkpoints.get((folder / given).resolve())
    if start is None:
        raise ConfigError("Q-TRAIN-030", f"{given} is not a checkpoint in {folder}: {others}")
    trouble = defect(start)
    if trouble:
        raise DataError("Q-TRAIN-031", f"{start} is torn ({trouble}), so no run can resume from it: {others}")
    if hard:
        raise ConfigError(
            "Q-TRAIN-029",
            f"{start} is of a run before {'; '.join(hard)} changed: put that back to resume from it",
        )
    if read_notes(start).get("run") != run_id(record):
        raise ConfigError(
            "Q-TRAIN-030", f"{start} is of another run than {folder / RUN}, and was copied here: {others}"
        )
    best = _best_of(start)
    trouble = defect(folder / best) if best else None
    if trouble:
        raise ConfigError(
            "Q-TRAIN-032",
            f"{best}, the best adapter until {start}, is gone or torn ({trouble}), and may be what the run "
            f"ends with: {others}",
        )
    set_later_aside(folder, start)
    return start


def _best_of(checkpoint: Path) -> str | None:
    """Return the best checkpoint until this one, if training stops early
    (`train.early_stopping_patience`).
    """
    state = checkpoint / STATE
    if not state.is_file():
        return None
    step = json.loads(state.read_text(encoding="utf-8")).get("best_global_step")
    return f"checkpoint-{step}" if step else None


def finish(folder: Path, record: dict[str, Any]) -> None:
    """Record that the run's adapter is published, so the next run may replace its checkpoints."""
    write_json(folder / RUN, {"record": record, "finished": True})


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        run = parse_object(path.read_bytes())
    except ValueError:
        run = {}
    if not isinstance(run.get("record"), dict) or "finished" not in run:
        raise DataError(
            "Q-TRAIN-033",
            f"{path} can't be read, so these checkpoints can't be matched to a run: {RESTART}",
        )
    return run
