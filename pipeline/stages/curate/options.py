"""Options of stage curate, which are no settings."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """The division of the work."""

    shards: int | None = None  # publish what this many jobs have written (`pipeline.stages.curate.shard`)
