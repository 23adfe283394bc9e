"""`quench data pairs`: preference pairs made from the model's own answers."""

from pipeline.core.extras import Extra

EXTRA = Extra(page="docs/rewards.md", provides={"data pairs": "command"})
