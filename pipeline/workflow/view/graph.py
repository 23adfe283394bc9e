"""The jobs of a project by its dvc.yaml and dvc.lock: their order, what they need, and why they run.

Nothing is written, and DVC is not started. Of large files and folders only the size is compared, which is
enough to say why; whether a stage runs is DVC's verdict.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.params import Params, load_params
from pipeline.config.params_text import as_yaml
from pipeline.core.errors import QuenchError
from pipeline.core.text import safe
from pipeline.workflow.dvc_yaml import wanted_stages
from pipeline.workflow.keys.code_keys import CODE, FOLDER, SETTINGS
from pipeline.workflow.stages import Values, values_of
from pipeline.workflow.state.lockfile import (
    Entry,
    changed_inputs,
    jobs_of,
    overlap,
    params_of,
    recorded_stages,
)

NEW = "it has not run here"
MOST = 3  # causes that are named


@dataclass(frozen=True)
class Graph:
    """The jobs of a project under some settings, in their order, and their records."""

    root: Path
    values: Values
    jobs: Mapping[str, Entry]
    keys: Mapping[str, list[str]]  # the settings that a stage depends on
    records: Mapping[str, Any]

    @classmethod
    def of(cls, root: Path, params: Params) -> "Graph":
        """Return the graph of the project `root` with the settings `params`.

        Its stages are those that Snakemake would write into dvc.yaml. Raises `QuenchError` for a dvc.yaml or
        a dvc.lock that can't be read.
        """
        values = values_of(params)
        stages = wanted_stages(root, params)
        jobs = {name: job for name, job in jobs_of(stages, values).items() if name not in (CODE, SETTINGS)}
        keys = {name: params_of(stage.get("do", stage)) for name, stage in stages.items()}
        return cls(root, values, jobs, keys, recorded_stages(root))

    def causes(self, job: str) -> Iterator[str]:
        """Yield what differs from the record of `job`."""
        record = self.records.get(job)
        if record is None:
            yield NEW
            return
        recorded = {key: value for keys in record.get("params", {}).values() for key, value in keys.items()}
        for key in self.keys[stage_of(job)]:
            before = recorded.get(key)
            now = self.values.at(key)
            if before != now:
                yield from _changes(key, before, now)
        for path in changed_inputs(record, self.root):
            # The files that another job writes are missing or old because that one runs.
            if not any(overlap(Path(path), Path(out)) for entry in self.jobs.values() for out in entry.outs):
                yield f"code of {Path(path).stem} changed" if path.startswith(FOLDER) else f"{path} changed"
        for out in self.jobs[job].outs:
            if not (self.root / out).exists():
                yield f"{out} is missing"

    def followers(self, jobs: Collection[str]) -> dict[str, str]:
        """Return {job: the job of `jobs` or their followers that it reads from}."""
        found: dict[str, str] = {}
        wanted = list(jobs)
        while wanted:
            maker = wanted.pop(0)
            outs = [Path(out) for out in self.jobs[maker].outs]
            for name, entry in self.jobs.items():
                if name in jobs or name in found:
                    continue
                if any(overlap(Path(dep), out) for dep in entry.deps for out in outs):
                    found[name] = maker
                    wanted.append(name)
        return found

    def needed_by(self, jobs: Collection[str]) -> set[str]:
        """Return the jobs from which `jobs` read, directly or not."""
        found: set[str] = set()
        wanted = list(jobs)
        while wanted:
            deps = [Path(dep) for dep in self.jobs[wanted.pop()].deps]
            for name, entry in self.jobs.items():
                if name not in found and any(overlap(dep, Path(out)) for dep in deps for out in entry.outs):
                    found.add(name)
                    wanted.append(name)
        return found


@dataclass(frozen=True)
class Context:
    """What a view says of the stages that run: their order, why they run, the fresh ones before them."""

    order: list[str]
    why: Mapping[str, str]
    up_to_date: list[str]


def context(root: Path, stages: Collection[str]) -> Context:
    """Return the context of `stages`, which all run; without reasons if the project can't be read."""
    try:
        graph = Graph.of(root, load_params(root / "params.yaml"))
    except (QuenchError, OSError, KeyError, TypeError):
        return Context(list(stages), {}, [])
    return context_of(graph, [job for job in graph.jobs if stage_of(job) in stages], stages)


def context_of(graph: Graph, jobs: Collection[str], stages: Collection[str]) -> Context:
    """Return the context of `jobs` of the graph, which all run; `stages` may have rules that it lacks."""
    known = list(dict.fromkeys(map(stage_of, jobs)))
    needed = {stage_of(job) for job in graph.needed_by(jobs)}
    return Context(
        [*(name for name in stages if name not in known), *known],
        in_words(graph, jobs),
        [name for name in dict.fromkeys(map(stage_of, graph.jobs)) if name in needed and name not in stages],
    )


def stage_of(job: str) -> str:
    """Return the stage of a job: "quantize" of "quantize@Q4_K_M"."""
    return job.partition("@")[0]


def in_words(graph: Graph, jobs: Collection[str]) -> dict[str, str]:
    """Return {stage: why its jobs, which are of `jobs`, run}."""
    own: dict[str, list[str]] = {}
    for job in jobs:
        stage, _, item = job.partition("@")
        causes = [f"{item}: {cause}" if item else cause for cause in graph.causes(job)]
        own.setdefault(stage, []).extend(causes)
    first = [job for job in jobs if own[stage_of(job)]]
    after = {stage_of(job): maker for job, maker in graph.followers(first).items()}
    return {
        stage: "; ".join(causes[:MOST]) + (f" and {len(causes) - MOST} more" if len(causes) > MOST else "")
        if causes
        else f"after {after[stage]}"
        for stage, causes in own.items()
        if causes or stage in after
    }


def _changes(key: str, before: Any, now: Any) -> Iterator[str]:
    """Yield "train.r: 16 → 8", for a section of settings one for each key in it."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                yield from _changes(f"{key}.{name}", before.get(name), now.get(name))
    else:
        yield safe(f"{key}: {as_yaml(before)} → {as_yaml(now)}", 100)
