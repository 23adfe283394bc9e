"""`quench remote …`: stage train on another machine, by SSH."""

from pipeline.core.extras import Extra

EXTRA = Extra(page="docs/remote.md", verbs="verb")
