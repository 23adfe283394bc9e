"""What the processes of a training do that don't lead: the same steps, without a trace on the disk."""

import os
import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.sections import Training
from pipeline.core.interruption import Interruption
from pipeline.core.metrics_log import MetricsLog
from pipeline.models.runtime import use_all_cores
from pipeline.stages.train.learner import learner_of
from pipeline.stages.train.proofs import prove_beforehand
from pipeline.stages.train.record import describe
from pipeline.stages.train.run import Job, Run


def follow(job: Job) -> None:
    """Do this process's share of a job, as long as rank 0 trains; return at once if it has nothing to do.

    Raises `ConfigError` if this process has other inputs, `Stopped` after a signal to any process, `Lost` if
    another process is gone.
    """
    from pipeline.models.tuners.scales import unchanged_in_file
    from pipeline.stages.train.assembly import make_trainer

    settings, group = job.settings, job.group
    with ExitStack() as opened:
        nowhere = opened.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        opened.enter_context(redirect_stdout(nowhere))
        interruption = opened.enter_context(Interruption())
        use_all_cores()
        group.share_cores()
        plan = group.follow(lambda: same_in_all(describe(job.tokens, job.base, settings), settings))
        if plan is None:
            print(f"train: process {group.rank.number} has nothing to do", file=sys.stderr)
            return
        run = Run(
            **vars(job),
            record=plan["record"],
            start=job.checkpoints / plan["start"] if plan["start"] else None,
            tokenizer=load_tokenizer(job.base),
            interruption=interruption,
            metrics_log=MetricsLog(job.checkpoints / "none"),  # rank 0 writes the journal; this is only read
        )
        learner = learner_of(settings.method)(run)
        opened.enter_context(learner.prepared())  # rank 0 has asked a teacher, so its answers are there
        trainer, _ = make_trainer(learner)
        group.connect()
        if settings.shares_base:  # each weight is looked at by all
            prove_beforehand(trainer)
        learner.measure_before(trainer)
        trainer.train()
        if settings.shares_base:
            unchanged_in_file(trainer.model)


def same_in_all(record: dict[str, Any], settings: Training) -> dict[str, Any]:
    """What all processes of a training must have alike: the run's record, and what no byte depends on."""
    return record | {"settings": record["settings"] | {"offload": settings.offload}}
