"""Which settings of `params.yaml` do nothing in a project, as Snakemake says it before it plans, and a stage
that a user or DVC runs.
"""

from collections.abc import Iterator

from pipeline.config.conditions import idle
from pipeline.config.params import Params
from pipeline.workflow.stages import stages_in

FIRST = "base"  # the stage that every graph begins with


def idle_of(stage: str, params: Params) -> Iterator[str]:
    """A sentence on each setting in the section of `stage` ("quantize") that does nothing; the first stage
    also speaks for sections that have no stage in this graph.
    """
    stages = stages_in(params.graph)
    for one in idle(params):
        section = one.key.partition(".")[0]
        if stage == (section if section in stages else FIRST):
            yield str(one)
