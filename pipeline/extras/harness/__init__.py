"""`evaluate.harness`: tasks of lm-evaluation-harness, a part of stage evaluate."""

from pipeline.core.extras import Extra

EXTRA = Extra(
    page="docs/evaluation.md", provides={"evaluate.harness": "run"}, pip="harness", imports="lm_eval"
)
