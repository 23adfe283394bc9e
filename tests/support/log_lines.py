"""The lines of a run's logs that Quench didn't write. `python tests/support/log_lines.py logs/*.log` prints
them, and fails if there are any.

A warning that means nothing is silenced by name (`pipeline.models.runtime.silence_libraries`). One that a
user should see, and that Quench can't say better, is added to `ALLOWED` with its reason.
"""

import re
import sys
from pathlib import Path

from pipeline.workflow.stages import table

OWN = (
    rf"({'|'.join(table().stages)}): \S.*",  # what a stage does, found and warns of
    r"  (pass|warn|fail|not measured) +\S.*",  # the checks before training
    r".+: \d+% after \d+ s, about \d+ s left",  # progress
)
TABLE = re.compile(r"^ *model +size.*?^The page: [^\n]*", re.MULTILINE | re.DOTALL)  # what report prints
ALLOWED: tuple[str, ...] = ()  # other programs' lines: none so far
KNOWN = re.compile("|".join((*OWN, *ALLOWED)))


def strange(log: str) -> list[str]:
    """The lines that neither Quench wrote nor somebody allowed."""
    return [line for line in TABLE.sub("", log).splitlines() if line.strip() and not KNOWN.fullmatch(line)]


if __name__ == "__main__":
    found = [f"{file}: {line}" for file in sys.argv[1:] for line in strange(Path(file).read_text("utf-8"))]
    sys.exit("\n".join(found) if found else 0)
