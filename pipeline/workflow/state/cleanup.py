"""Removal of obsolete files: temporary files of killed runs, and results that the settings no longer need.

Every process that writes below a project's folder shares a lock (`working`). A process that gets the lock
exclusively knows that the owners of all temporary files are dead, and removes these. Files from which a later
run resumes stay: downloads (`models/.base.download`) and checkpoints, also those of jobs in scratch folders
(`pipeline.core.places.scratch`).

Results of jobs that settings choose (`chosen_by` in the graph) and no longer do, and of one-job stages that
the settings no longer ask for, are removed when the last stage is done, with the scratch of all of them.
So are the files that other stages left for jobs that they no longer have. Results are deleted only if DVC's
cache can restore them: those of another `--params` file, or of a project without DVC, exist nowhere else.
"""

import fcntl
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

from pipeline.config.params import Params
from pipeline.core.errors import ToolError
from pipeline.core.hashing import NO_PART
from pipeline.core.locks import WORK, lock_file, stages_at_work
from pipeline.core.places import scratch
from pipeline.core.publish import OLD, is_scrap, recover, remove
from pipeline.core.units import size_text
from pipeline.workflow.cluster_jobs import is_remote, jobs_at_work
from pipeline.workflow.keys.stamps import files_below
from pipeline.workflow.stages import Stage, asked_by, filled, items_of, optional, table, users, values_of
from pipeline.workflow.state.dvc_project import open_project, place
from pipeline.workflow.state.hashes import Hashes
from pipeline.workflow.state.lockfile import digest_of

TOPS = ("data", "models", "reports")
# Folders that are published as one, in addition to the outputs of stages.
BESIDE = ("models/bundle/*/", "models/checkpoints/*/")


@contextmanager
def working(root: Path) -> Iterator[None]:
    """Write below `root` while the body runs.

    Temporary files of killed runs are removed first if no other process writes there, and none is removed
    while the body runs. A job on another machine removes nothing, because its lock doesn't show which others
    are at work. Nor does any process while a cluster has such jobs.
    """
    if is_remote():
        yield
        return
    try:
        file = lock_file(WORK, root).open("a")
    except OSError:  # a read-only folder: no run leaves a file there
        yield
        return
    with file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _jobs_may_write(root):
                sweep(root)
        except BlockingIOError:
            pass  # The files may belong to another process.
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def share(root: Path) -> IO[str]:
    """Return the lock of `working`, so that no process sweeps until the file is closed.

    It is for a Snakemake with jobs on other machines, which write without the lock.
    """
    lock = lock_file(WORK, root).open("a")
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def _jobs_may_write(root: Path) -> bool:
    """Return True if a cluster has jobs of the project, which have no lock, or doesn't answer."""
    try:
        return bool(jobs_at_work(root))
    except ToolError:
        return True


def sweep(root: Path) -> None:
    """Remove temporary files below `root`, restore what a kill moved away, and report it on stderr.

    Only the process that has the lock of `working` exclusively may call it.
    """
    done = [_clear(path, root) for path in list(_temporary_files(root))]
    if done:
        print(f"swept what a killed run left: {', '.join(done)}", file=sys.stderr)
    for project in sorted(path for folder in _scratch() for path in (root / folder).glob("*/")):
        if (project / ".quench").is_dir():
            with working(project):
                pass


def _scratch() -> dict[Path, Stage]:
    """Return the folders in which stages work, with their stages."""
    return {scratch(name): stage for name, stage in table().stages.items() if stage.scratch}


def _temporary_files(root: Path) -> Iterator[Path]:
    for top in TOPS:
        for name_of_folder, folders, files in os.walk(root / top):
            folder = Path(name_of_folder)
            names = {name for name in files if is_scrap(name) and not name.endswith(OLD)}
            names |= {name for name in folders if is_scrap(name) and not _is_users(folder / name, root)}
            yield from (folder / name for name in sorted(names))
            folders[:] = [
                name
                for name in folders
                if not name.startswith(".") and (folder / name).relative_to(root).as_posix() not in users()
            ]


def _is_users(folder: Path, root: Path) -> bool:
    """Return True if a folder named like `publishing`'s old folders belongs to the user.

    It does if `publishing` never writes `NAME`.
    """
    if not folder.name.endswith(OLD):
        return False
    return not _published().fullmatch(f"{_moved(folder).relative_to(root).as_posix()}/")


def _moved(path: Path) -> Path:
    """Return the original path of what is now `.NAME.old`."""
    return path.with_name(path.name[1 : -len(OLD)])


@cache
def _published() -> re.Pattern[str]:
    """Return a pattern of the folders that are published as one. A value from params.yaml may be anything."""
    outputs = (path for stage in table().stages.values() for path in stage.written if path.endswith("/"))
    patterns = {re.sub(r"\$\{[^}]*\}", "*", path) for path in (*outputs, *BESIDE)}
    return re.compile("|".join(sorted(re.escape(path).replace(r"\*", "[^/]+") for path in patterns)))


def _clear(path: Path, root: Path) -> str:
    """Remove `path`, or restore it if it is the only copy of an artifact. Return words on what was done."""
    name = path.relative_to(root)
    size = _size(path)
    try:
        if path.name.endswith(OLD):
            target = _moved(path)
            if recover(target, path):
                return f"{target.relative_to(root)} is back"
        else:
            remove(path)
    except OSError as error:
        return f"{name} can't be removed ({error.strerror}), so remove it by hand"
    return f"{name} ({size_text(size)})"


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; for a link its own."""
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(file.lstat().st_size for file in files if file.is_symlink() or file.is_file())


def remove_obsolete(root: Path, params: Params) -> None:
    """Remove results that `params`, the project's own, do not need, and scratch.

    Remove nothing while a job that settings choose (`chosen_by` in the graph) is at work.

    A file that can't be removed is named on stderr.
    """
    chosen = {name: stage for name, stage in table().stages.items() if stage.chosen_by}
    if any(job.partition("@")[0] in chosen for job in stages_at_work(root)):
        return
    values = values_of(params)
    needed = {Path(path) for stage in chosen.values() for path in filled(stage.written, stage, values)}
    folders = {Path(path).parent for stage in chosen.values() for path in stage.written}
    results = [path for folder in sorted(folders) for path in (root / folder).glob("[!.]*")]
    results += [root / path for path in _of_stages_not_asked(params) if (root / path).exists()]
    others = [path for path in results if path.relative_to(root) not in needed]
    if others and (root / ".dvc").is_dir():
        with open_project(root, wait=True, exclusive=False) as repo, Hashes(root) as hashes:
            others = [path for path in others if _is_cached(path, Path(repo.cache.local.path), hashes)]
        _remove(others)
    for folder, stage in _scratch().items():
        asked = {item for item, _ in items_of(stage.each, values)}  # A killed run of one of them can resume.
        projects = [path for path in (root / folder).glob("*") if path.name not in asked]
        # The training of a killed job may still be saving its work.
        _remove([project for project in projects if not stages_at_work(project)])


def _of_stages_not_asked(params: Params) -> Iterator[str]:
    """Yield the outputs of optional stages that are one job each and that the settings don't ask for."""
    asked = asked_by(params)
    for name in optional(params.graph):
        stage = table().stages[name]
        if name not in asked and not stage.each:
            yield from (path.rstrip("/") for path in stage.written)


def _is_cached(path: Path, cache: Path, hashes: Hashes) -> bool:
    """Return True if DVC's cache has a file or a folder exactly as it is on disk.

    The cached objects are read too.
    """
    digests = hashes.md5s([file for file in files_below(path) if file.name not in NO_PART])
    objects = {place(cache, md5): md5 for md5 in (*digests.values(), digest_of(path, digests) or "")}
    content = hashes.md5s(path for path in objects if path.is_file())
    return all(md5 and content.get(path) == md5.removesuffix(".dir") for path, md5 in objects.items())


def _remove(paths: list[Path]) -> None:
    for path in paths:
        try:
            remove(path)
        except OSError as error:
            print(f"{path} can't be removed ({error.strerror}): remove it by hand", file=sys.stderr)
