"""Options of stage train, which are no settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.stages.train.distributed.group import Group


@dataclass(frozen=True)
class Options:
    """The start of a training, and the processes that share it."""

    resume: bool | Path = True  # from the newest checkpoint, from none (False), or from this one
    replay: bool = False  # from no checkpoint, on the rollouts of the last run
    group: "Group | None" = None  # the processes that train together; None if this is the only one
