"""The report's section on what each stage took: peak memory, time and disk, as planned and as seen when it
last ran here (`pipeline.core.usage`).
"""

from collections.abc import Mapping

from pipeline.core.usage import Usage
from pipeline.workflow.stages import table


def resource_rows(used: Mapping[str, Usage]) -> list[tuple[str, Usage]]:
    """(stage, its last run) in the order of the graph, but for the report itself."""
    order = {name: place for place, name in enumerate(table().stages)}
    known = [name for name in used if name.partition("@")[0] in order and name != "report"]
    return [(name, used[name]) for name in sorted(known, key=lambda one: (order[one.partition("@")[0]], one))]
