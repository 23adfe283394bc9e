"""Have the trackers of `train.report_to` get a training, and the report's table of levels."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from pipeline.config.params import Params


def observing(stage: str, params: Params, root: Path) -> AbstractContextManager[None]:
    """Return the context in which a stage runs below `root`; it does nothing without trackers.

    `pipeline.extras.trackers.tracking` is imported only then, because that takes longer than a short stage.
    """
    if not params.train.trackers or stage not in ("train", "report"):
        return nullcontext()
    from pipeline.extras.trackers.tracking import following, sending_levels

    return following(params, root) if stage == "train" else sending_levels(params, root)
