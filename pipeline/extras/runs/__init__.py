"""Compare two runs row by row: settings, data, scores, answers (docs/workflow.md)."""
