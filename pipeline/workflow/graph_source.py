"""The source of the graph: `graphs/stages.yaml`, which explains its keys, and a file of each extra that is a
stage. It is read without pydantic, because help has to be quick.
"""

from functools import cache
from typing import Any

from pipeline.core.extras import graph_files
from pipeline.core.places import resource
from pipeline.core.yaml_readers import read_fast

TABLE = resource("graphs/stages.yaml")
LAST = "report"  # the stage that every graph ends with
READERS = ("parity", "evaluate", LAST)  # stages that read what extras make


@cache
def graph_source() -> dict[str, Any]:
    """Return the source, with the stages of extras before those that read all others, and what these read."""
    core = read_fast(TABLE)
    stages = core["stages"]
    readers = {name: stages.pop(name) for name in READERS}
    for file in graph_files():
        extra = read_fast(file)
        stages |= extra["stages"]
        for reader, inputs in extra.get("readers", {}).items():
            for graph, deps in inputs.items():
                readers[reader][graph]["deps"] += deps
    return {**core, "stages": stages | readers}
