"""The catalog of errors: every id with its class, when it is raised and what to do, one YAML file per area (`train.yaml` has Q-TRAIN-...)."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Problem:
    """One entry: `error` names the class in `pipeline.core.errors`; `when` and `remedy` are sentences."""

    id: str
    error: str
    when: str
    remedy: str


@cache
def catalog() -> dict[str, Problem]:
    """Every problem by its id, sorted by file and id."""
    files = sorted(Path(__file__).parent.glob("*.yaml"))
    entries = {id: entry for file in files for id, entry in yaml.safe_load(file.read_text(encoding="utf-8")).items()}
    return {id: Problem(id, **entry) for id, entry in entries.items()}
