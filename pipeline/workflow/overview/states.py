"""The state of each job of a project, why it is not fresh, and what a run would do.

A job is what Snakemake runs at once: a stage, or a stage for one level or model ("quantize@Q4_K_M"). This is
the only judge. The dates by which Snakemake plans follow from it (`pipeline.workflow.settle`), and a job asks
it before it runs. It reads dvc.lock without starting DVC, and changes nothing but the cache of hashes.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.core.errors import ConfigError
from pipeline.core.locks import stages_at_work
from pipeline.core.text import safe
from pipeline.core.usage import usages
from pipeline.workflow.cluster_jobs import receipts
from pipeline.workflow.dvc_yaml import graph_for
from pipeline.workflow.graph_source import LAST
from pipeline.workflow.keys.code_keys import CODE, SETTINGS
from pipeline.workflow.overview.causes import Cause, Kind, Now, causes
from pipeline.workflow.overview.contents import Contents
from pipeline.workflow.stages import Values, asked_by, items_of, table, values_of
from pipeline.workflow.state.lockfile import Entry, jobs_of, recorded_stages

PATIENCE = 0.3  # seconds to wait for a stage that is being recorded


class State(StrEnum):
    """What a job's outputs are worth."""

    FRESH = "fresh"
    STALE = "stale"
    MISSING = "missing"
    DAMAGED = "damaged"
    RUNNING = "running"
    FINISHED = "finished"  # by a job on another machine, which the next run records
    UNRECORDED = "unrecorded"  # there, but this folder has no DVC


@dataclass(frozen=True)
class Job:
    """A job, and why it is in its state. `restorable` is True if DVC's cache has all that is missing.

    `seconds` is how long its last run took, None if it is unknown. It `reads` what these other jobs write.
    """

    name: str
    state: State
    causes: tuple[Cause, ...] = ()
    restorable: bool = False
    seconds: float | None = None
    reads: tuple[str, ...] = ()

    @property
    def stage(self) -> str:
        """Return the name of its stage."""
        return _stage_of(self.name)


@dataclass(frozen=True)
class Overview:
    """All jobs in their order, the stages that the settings don't ask for with the reason, the jobs that a
    run would run, and those of them that DVC makes first, to the same bytes. `entries` are dvc.yaml's.
    """

    jobs: tuple[Job, ...]
    off: Mapping[str, str]
    would_run: tuple[str, ...]
    made_first: tuple[str, ...]
    entries: Mapping[str, Entry]

    def job(self, name: str) -> Job | None:
        """Return a job by its name; None if the settings ask for no such one."""
        return next((job for job in self.jobs if job.name == name), None)

    def of_stage(self, stage: str) -> list[Job]:
        """Return the jobs of a stage, or the one that is named with its level."""
        return [job for job in self.jobs if stage in (job.name, job.stage)]

    def needed_by(self, names: Iterable[str]) -> set[str]:
        """Return the jobs from which these read, directly or not."""
        reads = {job.name: job.reads for job in self.jobs}
        found: set[str] = set()
        wanted = list(names)
        while wanted:
            new = {*reads[wanted.pop()]} - found
            found |= new
            wanted.extend(new)
        return found


def overview(root: Path, params: Params, targets: Collection[str] = ()) -> Overview:
    """Return the overview of `root` under these settings.

    `targets` are the stages, jobs or files up to which a run would go; the last stage if there are none.
    Raises `DataError` if dvc.lock is damaged, `ConfigError` for a target that no job makes.
    """
    values = values_of(params)
    stages = graph_for(root, params)
    entries = {
        name: entry
        for name, entry in jobs_of(stages, values).items()
        if _stage_of(name) not in (CODE, SETTINGS)
    }
    at_work = stages_at_work(root)
    # What a stage writes at this moment is not read.
    written_now = {out for name in at_work if name in entries for out in entries[name].outs}
    paths = {path for entry in entries.values() for path in (*entry.deps, *entry.outs)}
    contents = Contents(root, [path for path in paths if not _meets(path, written_now)])
    goals = _goals(entries, targets) if targets else {name for name in entries if _stage_of(name) == LAST}
    judged = _Judged(root, entries, Now(root, values, contents), uncached(stages, values), goals)
    seen = Overview(
        judged.jobs(at_work), off(params, values), judged.would_run(), judged.made_first(), entries
    )
    if not targets:
        return seen
    wanted = goals | seen.needed_by(goals)
    return replace(seen, would_run=tuple(name for name in seen.would_run if name in wanted))


def is_unchanged(job: str, root: Path, params: Params) -> bool:
    """Return True if nothing of a job differs from its record under these settings.

    Raises `DataError` if dvc.lock is damaged, `ConfigError` if dvc.yaml is of other settings.
    """
    values = values_of(params)
    entry = jobs_of(graph_for(root, params), values).get(job)
    if entry is None or not all((root / dep).exists() for dep in entry.deps):
        return False
    now = Now(root, values, Contents(root, [*entry.deps, *entry.outs]))
    return not any(causes(entry, recorded_stages(root).get(job), now))


def _goals(entries: Mapping[str, Entry], targets: Collection[str]) -> set[str]:
    """Return the jobs that `targets` name."""
    found: set[str] = set()
    for target in targets:
        named = {
            name
            for name, entry in entries.items()
            if target.casefold() in (name.casefold(), _stage_of(name))
            or _meets(target.rstrip("/"), entry.outs)
        }
        if not named:
            raise ConfigError(
                "Q-WORKFLOW-008",
                f"{safe(target, 80)} is no stage, and no file that one makes, so a dry run with other "
                "settings can't plan it: leave the settings or -n out",
            )
        found |= named
    return found


def _records(root: Path) -> dict[str, Any]:
    try:
        return recorded_stages(root, PATIENCE)
    except TimeoutError:  # DVC copies large outputs; it has not begun to write dvc.lock, or just has.
        return recorded_stages(root)


def off(params: Params, values: Values) -> dict[str, str]:
    """Return {stage: why the settings ask for none of its jobs} of this graph."""
    asked = asked_by(params)
    reasons = {}
    for name, stage in table().stages.items():
        if stage.only not in (None, params.graph):
            continue
        if stage.when and name not in asked:
            reasons[name] = stage.when.otherwise
        elif isinstance(stage.each, str) and not values.at(stage.each):
            reasons[name] = f"{stage.each} is []"
    return reasons


def uncached(stages: Mapping[str, Any], values: Values) -> set[str]:
    """Return the outputs of a dvc.yaml that DVC's cache does not keep."""
    found = set()
    for stage in stages.values():
        body = stage.get("do", stage)
        for _, item in items_of(stage.get("foreach") or stage.get("matrix"), values):
            for out in chain(*(body.get(kind, ()) for kind in ("outs", "metrics", "plots"))):
                if isinstance(out, dict):
                    found |= {
                        values.of(item).fill(path)
                        for path, options in out.items()
                        if options and options.get("cache") is False
                    }
    return found


class _Judged:
    """The jobs of a project, judged by their records."""

    def __init__(
        self,
        root: Path,
        entries: Mapping[str, Entry],
        now: Now,
        unkept: Collection[str],
        goals: Collection[str],
    ) -> None:
        self._root = root
        self._entries = entries
        self._contents = now.contents
        self._unkept = {*unkept}
        self._usage_of = usages(root)
        self._is_recorded = (root / ".dvc").is_dir()
        self._records = _records(root)
        self._finished = {receipt.stage for receipt in receipts(root)}
        self._own: dict[str, tuple[Cause, ...]] = {}
        if self._is_recorded:
            self._own = {
                name: (*causes(entry, self._records.get(name), now), *self._damaged_sources(entry))
                for name, entry in entries.items()
                if name not in self._finished
            }
        self._lost = {
            name: [out for out in entry.outs if not (root / out).exists()] for name, entry in entries.items()
        }
        self._followed = {
            name: [other for other, before in entries.items() if other != name and _follows(entry, before)]
            for name, entry in entries.items()
        }
        self._to_do = self._find_to_do(goals)

    def jobs(self, at_work: Collection[str]) -> tuple[Job, ...]:
        """Return all jobs, in the order in which they can run."""
        return tuple(self._job(name, at_work) for name in self._in_order())

    def _job(self, name: str, at_work: Collection[str]) -> Job:
        own = self._own.get(name, ())
        kinds = {cause.kind for cause in own}
        lost = self._lost[name]
        make = partial(Job, name, seconds=self._seconds(name), reads=tuple(self._followed[name]))
        if name in at_work:
            return make(State.RUNNING, own)
        if name in self._finished:
            return make(State.FINISHED)
        if kinds == {Kind.NO_RECORD} and lost:
            return make(State.MISSING, own)
        if kinds & {Kind.OUTPUT, Kind.DAMAGE}:
            return make(State.DAMAGED, own)
        if own:
            return make(State.STALE, own)
        follows = [other for other in self._followed[name] if other in self._to_do]
        if name in self._to_do and follows:
            return make(State.STALE, tuple(Cause(Kind.FOLLOWS, other) for other in follows))
        if lost:
            missing = tuple(Cause(Kind.MISSING, out) for out in lost)
            return make(State.MISSING, missing, restorable=self._restorable(name))
        return make(State.FRESH if self._is_recorded else State.UNRECORDED)

    def would_run(self) -> tuple[str, ...]:
        """Return the jobs that a run would run, in that order."""
        return tuple(name for name in self._in_order() if name in self._to_do)

    def made_first(self) -> tuple[str, ...]:
        """Return the jobs that would run, in that order, for the sake of only some of their readers."""
        return tuple(name for name in self.would_run() if self._is_made_first(name, self._to_do))

    def _find_to_do(self, goals: Collection[str]) -> set[str]:
        """Return the jobs that a run would run.

        A job whose output is missing runs only if one that runs reads it, or if it is one of the `goals`.
        """
        running = self._with_followers(name for name, own in self._own.items() if own and self._has_any(name))
        while True:
            more: set[str] = set()
            for name, lost in self._lost.items():
                if name in running or not lost or (not self._own.get(name) and self._restorable(name)):
                    continue
                if self._is_made_first(name, running):
                    more.add(name)
                elif name in goals or running & {*self._readers(name)}:
                    more |= self._with_followers([name])
            if more <= running:
                return running
            running |= more

    def _is_made_first(self, name: str, running: Collection[str]) -> bool:
        """Return True if a job is fresh, its missing outputs (the base's weights in a clone) are in no cache,
        and only some of the jobs that read them will run.

        Snakemake on its own would run it again together with all of these, also those that are fresh.
        """
        lost = self._lost[name]
        if not lost or self._own.get(name) or not {*lost} <= self._unkept:
            return False
        readers = self._readers(name)
        waiting = [other for other in readers if other in running or self._is_lost(other)]
        return 0 < len(waiting) < len(readers)

    def _readers(self, name: str) -> list[str]:
        """Return the jobs that read a missing output of a job."""
        lost = self._lost[name]
        return [
            other for other, entry in self._entries.items() if any(_meets(dep, lost) for dep in entry.deps)
        ]

    def _has_any(self, name: str) -> bool:
        """Return True if an output is there, or would come back from DVC's cache."""
        return any(
            out not in self._lost[name] or self._comes_back(name, out) for out in self._entries[name].outs
        )

    def _is_lost(self, name: str) -> bool:
        return bool(self._lost[name]) and not self._restorable(name)

    def _damaged_sources(self, entry: Entry) -> Iterable[Cause]:
        """Yield a cause for raw data whose bytes changed though its date did not."""
        for path in entry.deps:
            files = sorted(file for file in self._contents.suspects if _meets(file, [path]))
            if files and (self._root / f"{path}.dvc").is_file():
                yield Cause(Kind.DAMAGE, path, files=tuple(files))

    def _restorable(self, name: str) -> bool:
        return all(self._comes_back(name, out) for out in self._lost[name])

    def _comes_back(self, name: str, out: str) -> bool:
        """Return True if DVC brings an output of a job back: it is in the cache, and kept there."""
        return out not in self._unkept and self._contents.restorable(self._written(name).get(out, ""))

    def _written(self, name: str) -> dict[str, str]:
        return {out["path"]: out.get("md5", "") for out in self._records.get(name, {}).get("outs", [])}

    def _seconds(self, name: str) -> float | None:
        usage = self._usage_of.get(name)
        return usage.seen.seconds if usage else None

    def _with_followers(self, first: Iterable[str]) -> set[str]:
        found = {*first}
        while True:
            more = {
                name for name, before in self._followed.items() if name not in found and found & {*before}
            }
            if not more:
                return found
            found |= more

    def _in_order(self) -> list[str]:
        """Return the jobs so that each comes after those that it follows, otherwise as in dvc.yaml."""
        ordered: dict[str, None] = {}

        def add(name: str) -> None:
            if name not in ordered:
                for other in self._followed[name]:
                    add(other)
                ordered[name] = None

        for name in self._entries:
            add(name)
        return list(ordered)


def _stage_of(job: str) -> str:
    return job.partition("@")[0]


def _follows(entry: Entry, before: Entry) -> bool:
    return any(_meets(dep, before.outs) for dep in entry.deps)


def _meets(path: str, others: Iterable[str]) -> bool:
    """Return True if a path is, is in, or contains one of the others."""
    inside = f"{path}/"
    return any(path == other or path.startswith(f"{other}/") or other.startswith(inside) for other in others)
