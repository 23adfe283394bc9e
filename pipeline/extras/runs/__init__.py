"""Compare two runs row by row: settings, data, scores, answers (docs/workflow.md)."""

from pipeline.core.extras import Extra

EXTRA = Extra(page="docs/workflow.md", provides={"status --compare": "command"})
