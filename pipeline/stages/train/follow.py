"""What the processes of a training do that don't lead: the same steps, without a trace on the disk."""

import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.params import Params, read_params
from pipeline.config.sections import Training
from pipeline.core.errors import ConfigError
from pipeline.core.interruption import Interruption
from pipeline.core.locks import inputs_below
from pipeline.core.metrics_log import MetricsLog, Row
from pipeline.core.ranks import Rank
from pipeline.models.runtime import use_all_cores
from pipeline.stages.train.beforehand import BEFORE, held_out_before, prove_beforehand
from pipeline.stages.train.record import describe


class NoLog(MetricsLog):
    """Rank 0 writes the journal."""

    def append(self, row: Row) -> None:
        """Nothing."""

    def rows(self) -> list[Row]:
        """None."""
        return []


def run_rank(rank: Rank, stage: str, root: Path, params_file: Path | None, work: Callable[..., None]) -> None:
    """Run stage train with the other processes: rank 0 does all of `work(group=…)`, the others their share.

    Raises `ConfigError` for another stage, and what `work` and `follow` do.
    """
    if stage != "train":
        raise ConfigError(
            "Q-TRAIN-036",
            f"this is process {rank.number} of {rank.count}, and {stage[:80]} is the work of one: only train "
            "is shared",
        )
    from pipeline.stages.train.several.group import open_group

    with open_group(rank) as group, group.noticing():
        if rank.leads:
            work(group=group)
            return
        with inputs_below(root):
            follow(read_params(params_file or root / "params.yaml").params, root, group)


def follow(params: Params, root: Path, group: Any) -> None:
    """Do this process's share of stage train, as long as rank 0 trains; return at once if it has nothing to
    do.

    Raises `ConfigError` if this process has other inputs, `Stopped` after a signal to any process, `Lost` if
    another process is gone.
    """
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        follow_in(
            tokens=root / "data/tokens",
            base=root / "models/base",
            checkpoints=root / "models/checkpoints",
            settings=params.training,
            group=group,
        )


def same_in_all(record: dict[str, Any], settings: Training) -> dict[str, Any]:
    """What all processes of a training must have alike: the run's record, and what no byte depends on."""
    return record | {"train.shard_base": settings.shard_base}


def follow_in(*, tokens: Path, base: Path, checkpoints: Path, settings: Training, group: Any) -> None:
    """The same with each place by itself."""
    from pipeline.models.tuners import unchanged_in_file
    from pipeline.stages.train.assembly import make_trainer
    from pipeline.stages.train.distill.teacher import ask_teacher

    with Interruption() as interruption:
        use_all_cores()
        group.share_cores()
        plan = group.follow(lambda: same_in_all(describe(tokens, base, settings), settings))
        if plan is None:
            print(f"train: process {group.rank.number} has nothing to do", file=sys.stderr)
            return
        start = checkpoints / plan["start"] if plan["start"] else None
        teacher = None
        if settings.method == "distill":  # rank 0 has asked it
            teacher = ask_teacher(tokens, base, checkpoints, settings, plan["record"])
        trainer, _ = make_trainer(
            tokens,
            base,
            load_tokenizer(base),
            checkpoints,
            checkpoints,
            settings,
            NoLog(checkpoints / "none"),
            start,
            interruption,
            plan["record"],
            teacher,
            None,
            group,
        )
        group.connect()
        if settings.shard_base:  # each weight is looked at by all
            prove_beforehand(trainer, settings)
        if teacher:
            held_out_before(trainer, checkpoints / BEFORE, fresh=start is None)
        trainer.train(resume_from_checkpoint=str(start) if start else None)
        if settings.shard_base:
            unchanged_in_file(trainer.model)
