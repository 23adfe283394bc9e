"""What stage curate is told beside the settings."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """How the work is divided."""

    shards: int | None = None  # publish what this many jobs have written (`pipeline.stages.curate.shard`)
