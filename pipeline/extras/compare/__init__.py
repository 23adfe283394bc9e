"""The strategies to ship, measured against each other on the user's data."""

from pipeline.core.extras import Extra

EXTRA = Extra(page="docs/which-way-to-ship.md", settings=("compare.seeds",))
