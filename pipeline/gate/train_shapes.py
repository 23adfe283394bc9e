"""The record of training by shape, as `pipeline.gate.shapes` has the others."""

from pydantic import Field

from pipeline.config.methods import Method
from pipeline.gate.shapes import Count, Number, Shape, Share


class TrainRun(Shape):
    """Machine, versions and hashes of a run."""

    versions: dict[str, str | None] = Field(default_factory=dict)
    hashes: dict[str, str] = Field(default_factory=dict)


class TrainPreferences(Shape):
    """How held-out pairs or answers were told apart."""

    items: Count
    accuracy: Share
    low: Share
    high: Share


class TrainRewards(Shape):
    """What drawn answers earned: means of the first and of the last steps."""

    first: Number
    last: Number


class Train(Shape):
    """reports/train.json."""

    method: Method = "sft"
    preferences: TrainPreferences | None = None
    rewards: TrainRewards | None = None
    steps: Count
    loss_first: Number | None
    loss_last: Number | None
    run: TrainRun = TrainRun()
