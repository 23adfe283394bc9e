"""Stage curate as jobs: the phases into which `snakemake --set-scatter curate=7` divides it, and the
intermediate results that are still of use.

The number of shards changes the way curate runs and not a byte of its result, so DVC and params.yaml know
nothing of it. Jobs leave their results below `FOLDER`, where a later run resumes from them. The run that
completes curate removes them.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from pipeline.config.sections import Curate
from pipeline.core.errors import ConfigError
from pipeline.core.hashing import json_hash
from pipeline.core.publish import remove
from pipeline.workflow.keys.code_keys import stage_module
from pipeline.workflow.keys.imports import Package
from pipeline.workflow.keys.stamps import stamps

FOLDER = "data/.shards"
KEY = "key"  # a file in each folder: a hash of its sources
MOST = 256  # most shards, because keys are joined by their first byte
READ = ("data/raw", "data/guard")
ITEM = re.compile(r"(?:([1-9]\d{0,3})-)?of-([1-9]\d{0,3})")
# {phase: (True if it has a job for each shard, the phases that it reads)}
PHASES = {
    "plan": (False, ()),
    "clean": (True, ("plan",)),
    "sample": (False, ("plan", "clean")),
    "sketch": (True, ("plan", "clean", "sample")),
    "join": (True, ("plan", "clean", "sample", "sketch")),
    "cluster": (False, ("plan", "clean", "sample", "sketch", "join")),
    "write": (True, ("plan", "clean", "cluster")),
}
PUBLISHED = ("plan", "clean", "cluster", "write")  # phases that the last job reads
DIVIDED = "curate"  # the stage


class Job(NamedTuple):
    """A phase as a rule for Snakemake, with its wildcard for a shard. `job` is the command's argument."""

    name: str
    job: str
    deps: list[str]
    folder: str
    log: str


class Before(Protocol):
    """The rule of the stage: the files that it reads."""

    code: list[str]
    deps: list[str]


def jobs(stage: Before, shards: Sequence[str]) -> Iterator[Job]:
    """Yield the phases for these shards (1-of-7 …).

    There are none for a single shard, which the stage itself works on.
    """
    if len(shards) == 1:
        return
    read = [dep for dep in stage.deps if not dep.startswith(FOLDER)]
    for phase, (scattered, before) in PHASES.items():
        item = "{scatteritem}" if scattered else f"of-{len(shards)}"
        deps = _folders(before, shards) if before else [*stage.code, *read]
        name = f"{DIVIDED}_{phase}"
        yield Job(name, f"{phase} {item}", deps, f"{FOLDER}/{phase}-{item}", f"logs/{name}-{item}.log")


def made_of(shards: Sequence[str]) -> list[str]:
    """Return the folders that the stage publishes."""
    return _folders(PUBLISHED, shards) if len(shards) > 1 else []


def option(shards: Sequence[str]) -> str:
    """Return the option of the stage's command."""
    return f" --shards {len(shards)}" if len(shards) > 1 else ""


def _folders(phases: tuple[str, ...], shards: Sequence[str]) -> list[str]:
    folders: list[str] = []
    for phase in phases:
        is_scattered = PHASES[phase][0]
        items = shards if is_scattered else [f"of-{len(shards)}"]
        folders += [f"{FOLDER}/{phase}-{item}" for item in items]
    return folders


def parse_item(phase: str, item: str) -> tuple[int | None, int]:
    """Return (shard from 0, or None for a phase of one job; number of shards) of a job's name: 3-of-7, of-7.

    Raises `ConfigError` if it is not such a name.
    """
    scattered = PHASES[phase][0]
    match = ITEM.fullmatch(item)
    shard = 0
    shards = 0
    if match:
        shard, shards = (int(part or 0) for part in match.groups())
    if not match or bool(shard) != scattered or not shard <= shards <= MOST:
        form = f"3-of-7, with at most {MOST} shards" if scattered else f"of-7, with at most {MOST} shards"
        raise ConfigError("Q-CURATE-018", f"{item!r} is not a job of phase {phase}: write {form}")
    return (shard - 1 if scattered else None), shards


def key_of_inputs(root: Path, settings: Curate, shards: int) -> str:
    """Return a hash of all that curate reads, its settings and its code.

    The user's files count by size and date, so that no job reads them all again.
    """
    base = root / "models/base.json"
    made_of_these = [
        shards,
        settings.model_dump(mode="json"),
        stamps((root / folder for folder in READ), root),
        base.read_text(encoding="utf-8") if base.is_file() else None,
        Package().key(stage_module("curate")),
    ]
    return json_hash(made_of_these)


def drop_stale(root: Path, settings: Curate) -> None:
    """Remove what jobs of curate left below `root` for other inputs, settings or code."""
    for plan in (root / FOLDER).glob("plan-of-*"):
        _, shards = parse_item("plan", plan.name.removeprefix("plan-"))
        key = plan / KEY
        if not key.is_file() or key.read_text(encoding="ascii") != key_of_inputs(root, settings, shards):
            drop(root, shards)


def drop(root: Path, shards: int) -> None:
    """Remove what jobs of this many shards left."""
    for folder in (root / FOLDER).glob(f"*-of-{shards}"):
        remove(folder)
