"""`evaluate.harness`: tasks of lm-evaluation-harness, a part of stage evaluate."""
