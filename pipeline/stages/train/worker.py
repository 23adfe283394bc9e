"""Worker processes of a distributed training: the same steps as in rank 0, without a trace on disk."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.params import Params
from pipeline.config.sections import Training
from pipeline.core.errors import ConfigError
from pipeline.core.interruption import Interruption
from pipeline.core.locks import inputs_below
from pipeline.core.metrics_log import MetricsLog
from pipeline.core.ranks import Rank
from pipeline.models.runtime import use_all_cores
from pipeline.stages.train.invariants import prove_beforehand
from pipeline.stages.train.method import learner_of
from pipeline.stages.train.run import Job, Run, describe


def follow(job: Job) -> None:
    """Do this process's share of a job, as long as rank 0 trains.

    Return at once if rank 0 has nothing to do. Raises `ConfigError` if this process has other inputs,
    `Stopped` after a signal to any process, `Lost` if another process is gone.
    """
    from pipeline.models.tuners.scales import unchanged_in_file
    from pipeline.stages.train.assembly import make_trainer

    settings = job.settings
    group = job.group
    with ExitStack() as opened:
        nowhere = opened.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        opened.enter_context(redirect_stdout(nowhere))
        interruption = opened.enter_context(Interruption())
        use_all_cores()
        group.share_cores()
        plan = group.follow(
            lambda: same_in_all(describe(job.tokens, job.base, settings, job.previous), settings)
        )
        if plan is None:
            print(f"train: process {group.rank.number} has nothing to do", file=sys.stderr)
            return
        run = Run(
            **vars(job),
            record=plan["record"],
            start=job.checkpoints / plan["start"] if plan["start"] else None,
            tokenizer=load_tokenizer(job.base),
            interruption=interruption,
            # Rank 0 writes the journal. This one is only read.
            metrics_log=MetricsLog(job.checkpoints / "none"),
        )
        learner = learner_of(settings.method)(run)
        # Rank 0 has already queried a teacher, so its answers exist.
        opened.enter_context(learner.ready())
        trainer, _ = make_trainer(learner)
        group.connect()
        # A base that is shared has to be checked by all processes together.
        if settings.shares_base:
            prove_beforehand(trainer)
        learner.measure_before(trainer)
        trainer.train()
        if settings.shares_base:
            unchanged_in_file(trainer.model)


def run_rank(
    rank: Rank,
    stage: str,
    root: Path,
    settings: Callable[[], Params],
    given: Mapping[str, Any],
    work: Callable[[Mapping[str, Any]], None],
) -> None:
    """Run the stage with the other processes: rank 0 does all of `work`, the others their share. `work` gets
    the options of each stage, `given` on the command line, with the group in those of train.

    Raises `ConfigError` for another stage, and the errors of `work` and `follow`.
    """
    if stage != "train":
        raise ConfigError(
            "Q-TRAIN-036",
            f"this is process {rank.number} of {rank.count}, and {stage[:80]} is the work of one: only train "
            "is shared",
        )
    from pipeline.stages.train.distributed.group import open_group

    with open_group(rank) as group, group.raising_lost():
        if rank.leads:
            work({**given, stage: replace(given[stage], group=group)})
            return
        with inputs_below(root):
            follow(Job.below(root, settings().training, group))


def same_in_all(record: dict[str, Any], settings: Training) -> dict[str, Any]:
    """Return what must be equal in all processes of a training: the run's record, and `offload`, which
    changes no byte.
    """
    return record | {"settings": record["settings"] | {"offload": settings.offload}}
