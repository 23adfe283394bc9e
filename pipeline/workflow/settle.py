"""Preparation of the files for Snakemake, which judges by dates: lost outputs come back from DVC's cache, and
dates follow from the one verdict (`pipeline.workflow.overview.states`), so that all tools do the same work.

The outputs of a job that would run are dated `OLD`, those of all others no older than their inputs. That is
before Snakemake plans. Stages run later, and one may write the bytes that were there before: `reuse` then
spares those that follow it.
"""

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.config.params import load_params
from pipeline.workflow.keys.code_keys import CODE, SETTINGS
from pipeline.workflow.overview.states import Overview, is_unchanged, overview
from pipeline.workflow.project import read_settings, refresh_keys
from pipeline.workflow.state.dvc_project import (
    check_record,
    open_project,
    quarantine_damaged,
    remove_dead_links,
    update_dvc_state,
)
from pipeline.workflow.state.hashes import Hashes
from pipeline.workflow.state.integrity import scan_outputs
from pipeline.workflow.state.lockfile import Entry
from pipeline.workflow.state.settings import refresh_lock
from pipeline.workflow.state.settled import is_settled, remember

# "1" if Snakemake started the stage, and not by a user's --force (see pipeline/workflow/prepare.py).
REUSE = "QUENCH_REUSE"
OLD = 10**9  # nanoseconds since 1970: older than any input
# what `reuse` prints after the stage's name
RESTORED = "nothing it depends on has changed: its outputs are back from DVC's cache"
STAMP = ".snakemake_timestamp"  # Snakemake dates a folder by this file, if it contains one


@dataclass
class Settled:
    """The findings and changes of `settle`; paths are relative to the project's folder."""

    damaged: list[str] = field(default_factory=list)  # other bytes than before, under the same date
    restored: list[str] = field(default_factory=list)  # restored from DVC's cache
    absent: list[str] = field(default_factory=list)  # recorded in dvc.lock, but neither here nor in the cache
    would_run: set[str] = field(default_factory=set)  # jobs to run again
    # Jobs that DVC makes first, to the same bytes: fresh ones whose output it doesn't keep, and which only
    # some of the jobs that read it need.
    refetch: tuple[str, ...] = ()
    dated: int = 0  # number of files and folders that got another date


def settle(root: Path) -> Settled:
    """Restore missing outputs, judge all jobs, and set the dates below `root`. A second call changes nothing.

    Raises `MachineError` if DVC is at work here, `ToolError` (with DVC's words) if DVC can't read the
    project, `DataError` if raw data seems damaged.
    """
    if is_settled(root):
        return Settled()
    settled = Settled()
    with open_project(root) as repo, Hashes(root) as hashes:
        with repo.lock:
            check_record(repo)
            _sweep(repo)
            _record_generated(repo)
        remove_dead_links(repo)
        settled.damaged = scan_outputs(repo, hashes)
        _bring_back(repo, settled, hashes)
        update_dvc_state(repo, hashes)
    judged = overview(root, read_settings(root).params)
    settled.would_run = {*judged.would_run}
    settled.refetch = judged.made_first
    with open_project(root) as repo, Hashes(root) as hashes:
        with repo.lock:
            _keep_again(repo, judged)
            settled.dated = _date(root, judged, hashes)
        update_dvc_state(repo, hashes)
    if not (settled.would_run or settled.damaged or settled.absent):
        remember(root)
    return settled


def reuse(stage: str, root: Path, *, allowed: bool = False) -> bool:
    """Restore the outputs of `stage` ("train", "quantize@Q4_K_M") from DVC's cache and report it.

    Return False if it has to run.

    It has to if anything that it depends on differs from its record, if the cache lacks an output, or if
    reuse was not allowed (by `REUSE` or the caller; DVC itself does the same with its own runs). Raises
    `ToolError` with DVC's words.
    """
    allowed = (allowed or os.environ.get(REUSE) == "1") and "DVC_STAGE" not in os.environ
    if not allowed or not is_unchanged(stage, root, load_params(root / "params.yaml")):
        return False
    with open_project(root, wait=True) as repo, repo.lock:
        recorded = repo.stage.load_one(path=str(Path(repo.root_dir, "dvc.yaml")), name=stage)
        if not _all_good(recorded.outs, root):
            return False
        for out in recorded.outs:
            out.checkout(force=True)  # Not repo.checkout, which reads every stage again and doubles the time.
    print(f"{stage}: {RESTORED}")
    return True


def _all_good(outs: list[Any], root: Path) -> bool:
    """Return True if DVC's cache has all outputs, undamaged."""
    with Hashes(root) as hashes:
        for out in outs:
            quarantine_damaged(out, hashes)
    return not any(out.changed_cache() for out in outs)


def _record_generated(repo: Any) -> None:
    """Record the keys of the code and the settings in effect, which the caller has written.

    The stages that write them need not run, and others are judged by them.
    """
    root = Path(repo.root_dir)
    for stage in repo.index.stages:
        if stage.is_data_source or stage.name not in (CODE, SETTINGS):
            continue
        if not _is_recorded(stage) or any(out.changed_cache() for out in stage.outs if out.use_cache):
            stage.save(run_cache=False)
            # An edit came in between. The outputs and their sources must belong to one moment.
            changed = refresh_keys(root) if stage.name == CODE else refresh_lock(root)
            if changed:
                stage.save(run_cache=False)
            stage.commit()
            stage.dump(update_pipeline=False)


def _is_recorded(stage: Any) -> bool:
    """Return True if DVC's record of a stage that writes keys or settings is that of the files now.

    A missing file alone is not a difference.
    """
    if stage.changed_stage():
        return False
    verdicts = (entry.workspace_status().values() for entry in [*stage.deps, *stage.outs])
    return {"deleted"}.issuperset(chain.from_iterable(verdicts))


def _sweep(repo: Any) -> None:
    """Remove a killed checkout's leftovers next to and in outputs.

    They would count as content of a folder.
    """
    name = f".{'?' * 22}.tmp"  # DVC's temporary name: 16 random bytes as text; .dvcignore has it too
    outs = [Path(out.fs_path) for out in repo.index.outs]
    for file in {file for path in outs for file in (*path.parent.glob(name), *path.rglob(name))}:
        file.unlink()


def _bring_back(repo: Any, settled: Settled, hashes: Hashes) -> None:
    """Check missing outputs out of the cache, unless it is damaged.

    Record those that only a pull can restore.
    """
    for out in repo.index.outs:
        if out.use_cache and out.hash_info and not out.exists:
            quarantine_damaged(out, hashes)
            path = os.path.relpath(out.fs_path, repo.root_dir)
            if out.changed_cache():
                settled.absent.append(path)
            else:
                settled.restored.append(path)
    if settled.restored:
        repo.checkout(targets=[str(Path(repo.root_dir, path)) for path in settled.restored], force=True)


def _keep_again(repo: Any, judged: Overview) -> None:
    """Put outputs of fresh jobs into DVC's cache again from which a kill or `dvc gc` removed them."""
    for stage in repo.index.stages:
        if stage.is_data_source or stage.name in judged.would_run:
            continue
        if any(out.use_cache and out.exists and out.changed_cache() for out in stage.outs):
            stage.commit(allow_missing=True)


def _date(root: Path, judged: Overview, hashes: Hashes) -> int:
    """Set the date of every job's outputs, first of the jobs that others follow. Return how many changed."""
    now = time.time_ns()
    dated = 0
    written = [root / out for entry in judged.entries.values() for out in entry.outs]
    for job in judged.jobs:
        entry = judged.entries[job.name]
        inputs = [*_seen_inputs(entry, root, written)]
        outputs = [root / out for out in entry.outs if (root / out).exists()]
        # An input with a date in the future would make every output of today look stale.
        dated += sum(_set_date(path, now, hashes) for path in [*inputs, *outputs] if _get_date(path) > now)
        if job.name in judged.would_run:
            dated += sum(_set_date(path, OLD, hashes) for path in outputs)
        else:
            newest = max(map(_get_date, inputs), default=0)
            dated += sum(_set_date(path, newest, hashes) for path in outputs if _get_date(path) < newest)
    return dated


def _seen_inputs(entry: Entry, root: Path, written: Iterable[Path]) -> Iterator[Path]:
    """Yield the inputs of a job; of a folder that several jobs write into, Snakemake sees the files too."""
    for dep in entry.deps:
        paths = [root / dep, *(output for output in written if root / dep in output.parents)]
        yield from (path for path in paths if path.exists())


def _carrier(path: Path) -> Path:
    """Return the file whose date Snakemake reads for `path`: a folder's stamp, if it contains one."""
    stamp = path / STAMP
    return stamp if stamp.exists() else path


def _get_date(path: Path) -> int:
    return _carrier(path).stat().st_mtime_ns


def _set_date(path: Path, date: int, hashes: Hashes) -> bool:
    """Set the date of `path` (nanoseconds). Return True if that was a change."""
    if _get_date(path) == date:
        return False
    hashes.date(_carrier(path), date)
    return True
