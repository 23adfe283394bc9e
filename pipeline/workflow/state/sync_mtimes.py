"""Synchronization of dates: Snakemake, which judges by dates, gets DVC's verdict on contents, so that both
tools do the same work.

A stage is stale if its command, a parameter, an input or an output differs from what `dvc.lock` recorded, or
if it follows a stale one. A fresh stage's outputs are dated no older than its inputs, a stale one's are dated
`OLD`. A missing output is restored from DVC's cache if it is there; if it isn't, Snakemake sees that itself.

That is before Snakemake plans. Stages run later, and one may write the bytes that were there before: `reuse`
then spares those that follow it.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.yaml_readers import UNREADABLE, read_fast
from pipeline.workflow.keys.code_keys import CODE, LOCK, SETTINGS
from pipeline.workflow.project import refresh_keys
from pipeline.workflow.stages import Values
from pipeline.workflow.state.dvc_project import (
    check_record,
    open_project,
    quarantine_damaged,
    remove_dead_links,
    update_dvc_state,
)
from pipeline.workflow.state.hashes import Hashes
from pipeline.workflow.state.integrity import scan_outputs
from pipeline.workflow.state.lockfile import overlap, seems_unchanged
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
    stale: set[str] = field(default_factory=set)  # stages to run again
    # fresh stages with an output that DVC doesn't keep, and that a stale stage needs
    refetch: list[str] = field(default_factory=list)
    dated: int = 0  # number of files and folders that got another date


def settle(root: Path) -> Settled:
    """Restore missing outputs and set all dates below `root`. A second call changes nothing.

    Raises `MachineError` if DVC is at work here, `ToolError` (with DVC's words) if DVC can't read the
    project, `DataError` if raw data seems damaged.
    """
    if is_settled(root):
        return Settled()
    with open_project(root) as repo, Hashes(root) as hashes:
        with repo.lock:
            check_record(repo)
            _sweep(repo)
            _record_generated(repo)
        remove_dead_links(repo)
        settled = Settled(damaged=scan_outputs(repo, hashes))
        _bring_back(repo, settled, hashes)
        with repo.lock:
            _date(repo, settled, hashes)
        update_dvc_state(repo, hashes)
    if not (settled.stale or settled.damaged or settled.absent or settled.refetch):
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
    if not allowed or not seems_unchanged(stage, root):
        return False
    with open_project(root, wait=True) as repo, repo.lock:
        recorded = repo.stage.load_one(path=str(Path(repo.root_dir, "dvc.yaml")), name=stage)
        if _is_stale(recorded) or not _all_good(recorded.outs, root):
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
        if _is_stale(stage) or any(out.changed_cache() for out in stage.outs if out.use_cache):
            stage.save(run_cache=False)
            # An edit came in between. The outputs and their sources must belong to one moment.
            changed = refresh_keys(root) if stage.name == CODE else refresh_lock(root)
            if changed:
                stage.save(run_cache=False)
            stage.commit()
            stage.dump(update_pipeline=False)


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


def _date(repo: Any, settled: Settled, hashes: Hashes) -> None:
    """Set the date of every stage's outputs, first of the stages that others follow."""
    import networkx  # type: ignore[import-untyped]

    now = time.time_ns()
    stale_outputs: set[Path] = set()
    settings = _settings(Path(repo.root_dir))
    stages = list(networkx.dfs_postorder_nodes(repo.index.graph))
    written = [path for stage in stages for path in _outputs(stage)]
    for stage in stages:
        # Of a folder that several stages write into, Snakemake sees the files.
        inputs = [
            path
            for dep in _inputs(stage)
            for path in (dep, *(output for output in written if dep in output.parents))
            if path.exists()
        ]
        outputs = [path for path in _outputs(stage) if path.exists()]
        # An input with a date in the future would make every output of today look stale.
        settled.dated += sum(
            _set_date(path, now, hashes) for path in [*inputs, *outputs] if _get_date(path) > now
        )
        if stage.is_data_source:
            continue
        if _is_stale(stage, settings) or any(_overlaps(path, stale_outputs) for path in inputs):
            settled.stale.add(stage.name)
            stale_outputs.update(_outputs(stage))
            settled.dated += sum(_set_date(path, OLD, hashes) for path in outputs)
        else:
            if any(out.use_cache and out.exists and out.changed_cache() for out in stage.outs):
                # A kill or `dvc gc` removed it from the cache. The content is the recorded one.
                stage.commit(allow_missing=True)
            newest = max((_get_date(path) for path in inputs), default=0)
            settled.dated += sum(
                _set_date(path, newest, hashes) for path in outputs if _get_date(path) < newest
            )
    settled.refetch = [stage.name for stage in stages if _needs_refetch(stage, stages, settled.stale)]


def _settings(root: Path) -> Values | None:
    """Return the settings in effect, which most stages depend on; None if they can't be read.

    DVC parses their file anew for each stage, in pure Python: a third of a run with nothing to do.
    """
    try:
        values = read_fast(root / LOCK)
    except (OSError, *UNREADABLE):
        return None
    return Values(values) if isinstance(values, dict) else None


def _is_stale(stage: Any, settings: Values | None = None) -> bool:
    """Return True if anything of the stage differs from its record.

    A missing file alone is not a difference.
    """
    return stage.changed_stage() or any(_differs(entry, settings) for entry in [*stage.deps, *stage.outs])


def _differs(entry: Any, settings: Values | None) -> bool:
    """Return True if an input, an output or a key of the settings is not as recorded."""
    recorded = entry.hash_info.value
    if settings and Path(entry.fs_path).name == LOCK and getattr(entry, "params", None) and recorded:
        return any(key not in recorded or settings.at(key) != recorded[key] for key in entry.params)
    return any(verdict != "deleted" for verdict in entry.workspace_status().values())


def _needs_refetch(stage: Any, stages: list[Any], stale: set[str]) -> bool:
    """Return True if a stage is fresh, its uncached output (the base's weights in a clone) is missing, and
    only some of its followers will run.

    Snakemake on its own would run it again together with every follower, also those that are fresh.
    """
    missing = {Path(out.fs_path) for out in stage.outs if not out.use_cache and not out.exists}
    if not missing or stage.is_data_source or stage.name in stale:
        return False
    followers = [other for other in stages if any(_overlaps(path, missing) for path in _inputs(other))]
    waiting = [
        other for other in followers if other.name in stale or not all(out.exists for out in other.outs)
    ]
    return 0 < len(waiting) < len(followers)


def _inputs(stage: Any) -> list[Path]:
    # params.yaml is judged by key, not by date.
    return [Path(dep.fs_path) for dep in stage.deps if not hasattr(dep, "params")]


def _outputs(stage: Any) -> list[Path]:
    return [Path(out.fs_path) for out in stage.outs]


def _overlaps(path: Path, others: set[Path]) -> bool:
    return any(overlap(path, other) for other in others)


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
