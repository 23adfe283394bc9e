"""Changes of settings or code that the user declares to be without effect on a job's outputs.

`accept` makes the present settings and code those that `dvc.lock` records of the job, and leaves its outputs
as they are. DVC then finds nothing changed, and so does Snakemake, which asks DVC. DVC's cache of runs is not
told, so no other run takes these outputs for those of this code.

The declaration is key `report.accepted` of params.yaml: it is in Git and in params.lock.yaml, and the report
and the card are made again with it. It names the outputs that it is about. Once the job has run again and
written others it says nothing any more. What the record was before is in `.quench/accepted`, for `undo`.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipeline.config.overrides import override
from pipeline.config.sections.shipping import Acceptance
from pipeline.core.errors import ConfigError
from pipeline.core.publish import remove, write_json
from pipeline.core.text import safe
from pipeline.workflow.graph_source import LAST
from pipeline.workflow.overview.causes import Kind
from pipeline.workflow.overview.states import Job, State, overview
from pipeline.workflow.prepare import no_stage_at_work, take_run_lock
from pipeline.workflow.project import read_settings, refresh_keys
from pipeline.workflow.settle import settle
from pipeline.workflow.state.dvc_project import open_project
from pipeline.workflow.state.lockfile import in_force, outputs_hash, recorded_stages
from pipeline.workflow.state.settings import need_settings

FOLDER = Path(".quench/accepted")
PLACE = ("report", "accepted")
LONGEST = 400  # characters of what was accepted
ACCEPTABLE = {Kind.SETTING, Kind.CODE, Kind.COMMAND}


def accept(root: Path, stage: str, why: str) -> dict[str, str]:
    """Declare what has changed for a stage, or for one of its jobs, to be without effect.

    Return {job: what was accepted}. Raises `ConfigError` if something else than settings or code has
    changed, or nothing.
    """
    with take_run_lock(root):
        no_stage_at_work(root)
        read = read_settings(root)
        need_settings(root, read)
        refresh_keys(root)
        settle(root)  # Keys of code and settings are recorded, and lost outputs are back.
        jobs = _acceptable(overview(root, read.params).of_stage(stage), stage)
        before = recorded_stages(root)
        _record(root, [job.name for job in jobs])
        after = recorded_stages(root)
        words = {job.name: _words(job, read.params.report.accepted, before[job.name]) for job in jobs}
        for job in words:
            _keep(root, job, before[job], after[job])
        new = {
            job: {"why": why, "what": what, "outputs": outputs_hash(after[job])}
            for job, what in words.items()
        }
        others = {
            job: accepted.model_dump()
            for job, accepted in in_force(root, read.params).items()
            if job not in new
        }
        _write(root, others | new)
    return words


def undo(root: Path, stage: str) -> list[str]:
    """Take back what was accepted for a stage or one of its jobs, so that it runs again. Return the jobs.

    Raises `ConfigError` if nothing was accepted for it.
    """
    with take_run_lock(root):
        no_stage_at_work(root)
        read = read_settings(root)
        known = read.params.report.accepted
        jobs = [job for job in known if stage in (job, job.partition("@")[0])]
        if not jobs:
            raise ConfigError(
                "Q-WORKFLOW-042",
                f"nothing was accepted for {safe(stage, 80)}: report.accepted in params.yaml names "
                f"{', '.join(known) or 'no stage'}",
            )
        records = recorded_stages(root)
        valid = in_force(root, read.params)
        former = {job: _kept(root, job, records[job]) for job in jobs if job in valid}
        if former:
            _put_back(root, former)
        _write(root, {job: accepted.model_dump() for job, accepted in known.items() if job not in jobs})
        for job in jobs:
            remove(root / FOLDER / f"{job}.json")
    return jobs


def _acceptable(jobs: Collection[Job], stage: str) -> list[Job]:
    """Return the jobs in which nothing but settings or code has changed."""
    changed = [job for job in jobs if any(cause.kind in ACCEPTABLE for cause in job.causes)]
    reason = ""
    if stage == LAST:
        reason = "it takes seconds, and shows what was accepted: run `snakemake`"
    elif not jobs:
        reason = "these settings make no such job"
    elif not changed:
        states = ", ".join(f"{job.name} is {job.state}" for job in jobs)
        follows = sorted({cause.name for job in jobs for cause in job.causes if cause.kind == Kind.FOLLOWS})
        remedy = f": accept {', '.join(follows)}" if follows else ""
        reason = f"no setting and no code of it has changed ({states}){remedy}"
    else:
        others = [
            f"{job.name}: {cause.text()}"
            for job in changed
            for cause in job.causes
            if cause.kind not in ACCEPTABLE
        ]
        damaged = [f"{job.name} is {job.state}" for job in changed if job.state != State.STALE]
        if others or damaged:
            reason = f"only settings and code can be accepted ({'; '.join(others or damaged)}): run it"
    if reason:
        raise ConfigError("Q-WORKFLOW-041", f"{safe(stage, 80)} can't be accepted: {safe(reason)}")
    return changed


def _words(job: Job, known: Mapping[str, Acceptance], before: Mapping[str, Any]) -> str:
    """Return what is accepted, after what was accepted before of the same outputs."""
    now = "; ".join(dict.fromkeys(cause.text() for cause in job.causes))
    earlier = known.get(job.name)
    if earlier and earlier.outputs == outputs_hash(before):
        now = f"{earlier.what}; {now}"
    return now if len(now) <= LONGEST else f"{now[: LONGEST - 1]}…"


def _record(root: Path, jobs: Collection[str]) -> None:
    """Record the present settings and code of these jobs. Their outputs' record stays."""
    with open_project(root, wait=True) as repo, repo.lock:
        for job in jobs:
            stage = repo.stage.load_one(path=str(Path(repo.root_dir, "dvc.yaml")), name=job)
            stage.save_deps()
            stage.dump(update_pipeline=False)


def _put_back(root: Path, records: Mapping[str, Any]) -> None:
    """Give jobs these records in dvc.lock; one whose record is None has none any more, so it runs."""
    from dvc.utils.serialize import modify_yaml

    with open_project(root, wait=True) as repo, repo.lock, modify_yaml(str(root / "dvc.lock")) as lock:
        for job, record in records.items():
            if record is None:
                del lock["stages"][job]
            else:
                lock["stages"][job] = record


def _keep(root: Path, job: str, before: Any, after: Any) -> None:
    first = _kept(root, job, before)
    write_json(root / FOLDER / f"{job}.json", {"before": first or before, "after": after})


def _kept(root: Path, job: str, record: Any) -> Any:
    """Return the record of `job` before all that was accepted, if the present one is what came of it."""
    try:
        kept = json.loads((root / FOLDER / f"{job}.json").read_text(encoding="utf-8"))
        return kept["before"] if kept["after"] == record else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _write(root: Path, accepted: Mapping[str, Any]) -> None:
    """Write the key into params.yaml, and the settings in effect."""
    override(root / "params.yaml", {PLACE: dict(accepted)})
    need_settings(root, read_settings(root))
