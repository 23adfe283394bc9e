"""What the views say of the stages that run, by the project's overview: their order, and why they run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config.params import load_params
from pipeline.core.errors import QuenchError
from pipeline.workflow.overview.causes import Cause, Kind, in_words
from pipeline.workflow.overview.states import Job, Overview, overview

NOT_OWN = (Kind.FOLLOWS, Kind.NO_RECORD)


@dataclass(frozen=True)
class Reason:
    """Why a stage runs, in words. `is_own`: something of its own has changed."""

    text: str = ""
    is_own: bool = False


@dataclass(frozen=True)
class Context:
    """The stages that run in their order, why they do, and the stages before them that need not run."""

    order: list[str]
    why: Mapping[str, Reason] = field(default_factory=dict)
    up_to_date: list[str] = field(default_factory=list)


def context(root: Path, stages: Collection[str]) -> Context:
    """Return the context of `stages`, which all run; without reasons if the project can't be read."""
    try:
        seen = overview(root, load_params(root / "params.yaml"))
    except (QuenchError, OSError):
        return Context(list(stages))
    return context_of(seen, stages)


def context_of(seen: Overview, stages: Collection[str]) -> Context:
    """Return the context of `stages`, which all run; they may be rules that are no stages."""
    known = list(dict.fromkeys(job.stage for job in seen.jobs))
    jobs = {stage: _of_those_that_run(seen, stage) for stage in known if stage in stages}
    needed = seen.needed_by(job.name for of_stage in jobs.values() for job in of_stage)
    return Context(
        [*(name for name in stages if name not in known), *jobs],
        {stage: _reason(of_stage) for stage, of_stage in jobs.items()},
        [
            stage
            for stage in known
            if stage not in stages and any(job.name in needed for job in seen.of_stage(stage))
        ],
    )


def _of_those_that_run(seen: Overview, stage: str) -> list[Job]:
    """Return the jobs of a stage that run; all if none has to, because the user forces them."""
    jobs = seen.of_stage(stage)
    return [job for job in jobs if job.name in seen.would_run] or jobs


def _reason(jobs: Sequence[Job]) -> Reason:
    """Return why a stage's jobs run. What several of them share is said once."""
    causes: list[Cause] = []
    for job in jobs:
        causes += [cause for cause in job.causes if cause not in causes]
    return Reason(in_words(causes), any(cause.kind not in NOT_OWN for cause in causes))
