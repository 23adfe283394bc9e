"""The catalog of errors: every id with its class, when it is raised and what to do.

There is one YAML file per area (`train.yaml` contains Q-TRAIN-...). `rows/reasons.yaml` contains the reasons
for which stage curate rejects rows, `rows/left_out.yaml` those for which stage preprocess leaves them out.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipeline.core.yaml_readers import read_fast

FOLDER = Path(__file__).parent
REASONS = FOLDER / "rows/reasons.yaml"
LEFT_OUT = FOLDER / "rows/left_out.yaml"


@dataclass(frozen=True)
class Problem:
    """One entry: `error` names the class in `pipeline.core.errors`; `when` and `remedy` are sentences."""

    id: str
    error: str
    when: str
    remedy: str

    @property
    def area(self) -> str:
        """The part of Quench that raises it: TRAIN for Q-TRAIN-004."""
        return self.id.split("-")[1]


@dataclass(frozen=True)
class Reason:
    """A reason to reject a row: the meaning of its name (in Markdown), an example, and the remedy."""

    name: str
    meaning: str
    example: str
    remedy: str


@cache
def reasons() -> dict[str, Reason]:
    """Return every reason that `data/rejects.jsonl` can contain, by name, in docs/data-formats.md's order."""
    return {name: Reason(name, **entry) for name, entry in read_fast(REASONS).items()}


@cache
def left_out() -> dict[str, Reason]:
    """Return every reason that `reports/labels.json` can contain, by name."""
    return {name: Reason(name, **entry) for name, entry in read_fast(LEFT_OUT).items()}


@cache
def catalog() -> dict[str, Problem]:
    """Return every problem by its id, sorted."""
    files = [read_fast(file) for file in FOLDER.glob("*.yaml")]
    entries = {id: Problem(id, **entry) for file in files for id, entry in file.items()}
    return dict(sorted(entries.items()))
