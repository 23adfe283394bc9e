"""A project's DVC: one process at a time writes its record, damaged objects in its cache are quarantined, and
its state, keyed by inode, size and date, gets our hashes.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import IO, Any, TextIO, cast

import yaml

from pipeline.core.errors import DataError, MachineError, ToolError
from pipeline.core.git import ask_git
from pipeline.core.hashing import NO_PART
from pipeline.core.locks import locked
from pipeline.core.publish import remove
from pipeline.core.special_files import is_dead_dvc_link
from pipeline.core.yaml_readers import read_fast
from pipeline.workflow.cluster_jobs import is_remote
from pipeline.workflow.keys.stamps import files_below
from pipeline.workflow.state.hashes import Digests, Hashes

RECORD_LOCK = Path(".dvc/tmp/quench-record.lock")
QUARANTINE = "rotten"  # folder in DVC's cache for objects that don't match their names
FOLDER_ENDING = ".dir"  # suffix of a folder's hash; nothing else distinguishes it from a file's
CLOCKS = 5.0  # seconds between the clocks of processes and files
RUN = re.compile(r"[0-9a-f]{64}")  # name of a run in DVC's cache


def lock_record(root: Path) -> AbstractContextManager[IO[str]]:
    """Wait until no stage below `root` is being recorded, and block other recordings.

    Give the lock's file.
    """
    return locked(root / RECORD_LOCK, fcntl.LOCK_EX)


def share_record(root: Path, patience: float | None = None) -> AbstractContextManager[object]:
    """Return the lock of `lock_record` for reading only, shared with others.

    If nothing can be written, nothing is being recorded. Raises `TimeoutError` after the seconds of
    `patience`.
    """
    path = root / RECORD_LOCK
    if is_remote():  # Recording happens when no job runs, and its lock would mean nothing here.
        return nullcontext()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError:
        return nullcontext()
    return locked(path, fcntl.LOCK_SH, patience)


@contextmanager
def open_project(root: Path, *, wait: bool = False, exclusive: bool = True) -> Iterator[Any]:
    """Give the DVC project at `root` while no stage is being recorded, with DVC's errors in plain words.

    With `wait` it waits for its lock; otherwise it gives up soon. A caller that isn't `exclusive` lets others
    read meanwhile. Raises `MachineError` if DVC is at work here or can't write, `ToolError` if it or Git
    can't read the project.
    """
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.scm import SCMError

    # It says "Updating lock file" for each recorded stage, also on standard output for `--json`.
    logging.getLogger("dvc.dvcfile").setLevel(logging.WARNING)
    try:
        with (
            redirect_stderr(cast(TextIO, _WithoutBars(sys.stderr))),
            lock_record(root) if exclusive else share_record(root),
            _opened(root, wait=wait) as repo,
        ):
            yield repo
    except LockError as error:
        raise MachineError(
            "Q-WORKFLOW-015",
            f"DVC is at work in this folder ({_sentence(error)}): wait for it, then run again",
        ) from error
    except (DvcException, SCMError) as error:
        raise ToolError(
            "Q-WORKFLOW-016", f"DVC can't read this project ({_sentence(error)}): fix that, then run again"
        ) from error
    except OSError as error:  # a full disk, or a folder of another user
        raise MachineError(
            "Q-WORKFLOW-017", f"DVC can't work in this folder ({_sentence(error)}): fix that, then run again"
        ) from error


def _opened(root: Path, *, wait: bool) -> Any:
    """Return DVC's view of the project.

    Raises `ToolError` if a configuration of Git can't be read, with Git's own words if it has any: DVC reads
    Git's files itself, and says neither which one it means nor the line.
    """
    from dvc.repo import Repo

    try:
        return Repo(str(root), _wait_for_lock=wait)
    except ValueError as error:
        ask_git(root, "rev-parse", "--show-toplevel")
        raise ToolError(
            "Q-WORKFLOW-016", f"DVC can't read this project ({_sentence(error)}): fix that, then run again"
        ) from error


class _WithoutBars:
    """A text stream that DVC takes for a file, so that it draws no bars: they flicker a hundred times a run.

    A bar of our own looks at the stream below.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.below = getattr(stream, "below", stream)

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())


def check_record(repo: Any) -> None:
    """Raise `MachineError` if a `dvc repro` that is still running writes outputs.

    Set a `dvc.lock` aside that a kill cut short.

    The caller has `repo.lock`.
    """
    check_no_writer(Path(repo.tmp_dir, "rwlock"))
    _set_aside_if_cut(Path(repo.root_dir, "dvc.lock"))


def check_no_writer(rwlock: Path) -> None:
    """Raise `MachineError` if DVC writes here.

    Delete the lock file if a kill cut it short, or if a killed DVC left it and another program has its
    process number now: DVC would wait for that.
    """
    if not rwlock.exists():
        return
    try:
        entries = json.loads(rwlock.read_text(encoding="utf-8"))
        writers = list(entries.get("write", {}).values())
        readers = [reader for readers in entries.get("read", {}).values() for reader in readers]
        changed = rwlock.stat().st_mtime
    except ValueError:
        rwlock.unlink()
        return
    for writer in writers:
        if _runs(writer, changed):
            raise MachineError(
                "Q-WORKFLOW-015",
                f"DVC is at work in this folder (process {writer['pid']}, says {rwlock}): wait for it, then "
                "run again",
            )
    if (writers or readers) and not any(_runs(reader, changed) for reader in readers):
        rwlock.unlink()


def _runs(holder: Mapping[str, Any], changed: float) -> bool:
    """Return True if the process that DVC's lock names is still the one that wrote it, at time `changed`.

    In doubt it is.
    """
    import psutil

    try:
        process = psutil.Process(int(holder["pid"]))
        words = " ".join(process.cmdline())
        # Not all of it is compared: after `python -m dvc` the lock has the path of the module.
        is_dvc = "dvc" in words or words.endswith(str(holder.get("cmd", "")).rpartition(" ")[2])
        return is_dvc and process.create_time() <= changed + CLOCKS
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def _set_aside_if_cut(file: Path) -> None:
    """Rename a `dvc.lock` that was cut short, because DVC writes it in place.

    Stages without a record run again.

    Raises `DataError` if it is an unmerged file of Git's: setting that aside would train again.
    """
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from voluptuous import Invalid

    try:
        if file.exists():
            COMPILED_LOCKFILE_SCHEMA(read_fast(file))
    except (yaml.YAMLError, Invalid, UnicodeDecodeError):
        need_merged(file)
        broken = file.replace(file.with_name("dvc.lock.broken"))
        print(
            f"dvc.lock was cut short by a kill: it is now {broken.name}, and stages without a record run "
            "again",
            file=sys.stderr,
        )


def need_merged(lock: Path) -> None:
    """Raise `DataError` if Git left conflict markers in `lock`, a dvc.lock that can't be read."""
    if any(line.startswith(b"<<<<<<< ") for line in lock.read_bytes().splitlines()):
        raise DataError(
            "Q-WORKFLOW-018",
            f"{lock} has the marks of a merge with conflicts: `git checkout --ours dvc.lock` (or `--theirs`) "
            "takes one side's record, then run again; what it doesn't fit is made again",
        )


def update_dvc_state(repo: Any, hashes: Hashes) -> None:
    """Write into DVC's state the hashes of files that were read or dated.

    Its keys are inode, size and date. It would keep the old hash of a damaged file, and read a dated one
    again.
    """
    from dvc_data.hashfile.hash_info import HashInfo

    repo.state.save_many(
        [(str(path), HashInfo("md5", digest), None) for path, digest in hashes.unreported.items()], repo.fs
    )
    hashes.unreported.clear()


def quarantine_damaged(out: Any, hashes: Hashes) -> None:
    """Quarantine and report DVC's cached objects of `out` that don't match their names.

    DVC then counts them as missing.
    """
    if out.use_cache and out.hash_info:
        cache = Path(out.cache.path)
        md5 = out.hash_info.value
        quarantine(cache, hashes.md5s([place(cache, md5)]))
        quarantine(cache, hashes.md5s(place(cache, entry["md5"]) for entry in listing(cache, md5)))


def quarantine(cache: Path, digests: Digests) -> list[str]:
    """Quarantine each object of DVC's cache (of `digests`, by path) that doesn't match its name.

    Return the names.
    """
    names = {path: path.parent.name + path.name for path in digests}
    return [
        _move(path, cache, name)
        for path, name in names.items()
        if name.removesuffix(FOLDER_ENDING) != digests[path]
    ]


def remove_dead_links(repo: Any) -> None:
    """Remove dead links of stages' outputs into a cache of DVC's, on which DVC fails.

    DVC's cache type may be symlink. After a project or its cache was moved, links lead to the former place.
    Raw data without a file would look like an edit: its links stay, and are refused.
    """
    for out in repo.index.outs:
        if out.stage.is_data_source or not out.use_cache:
            continue
        path = Path(out.fs_path)
        links = [path]
        if path.is_dir():
            links = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
        dead = [link for link in links if is_dead_dvc_link(link)]
        for link in dead:
            link.unlink()
        if dead and path.is_dir() and all(file.name in NO_PART for file in files_below(path)):
            remove(path)  # An empty folder would look like an edit.


def quarantine_runs(repo: Any) -> list[str]:
    """Quarantine the damaged records of runs in DVC's cache, which `dvc repro` uses. Return their names."""
    from dvc.exceptions import DvcException
    from dvc.utils import dict_sha256
    from dvc.utils.serialize import load_yaml

    def is_good(path: Path) -> bool:
        try:
            return bool(dict_sha256(load_yaml(path), exclude=["size", "nfiles"]) == path.name)
        except (DvcException, OSError, ValueError, TypeError, AttributeError):
            return False

    runs = [path for path in files_below(Path(repo.stage_cache.cache_dir)) if RUN.fullmatch(path.name)]
    return [_move(path, Path(repo.cache.local.path), path.name) for path in runs if not is_good(path)]


def _move(path: Path, cache: Path, name: str) -> str:
    target = cache.parents[1] / QUARANTINE / name
    target.parent.mkdir(exist_ok=True)
    path.replace(target)
    print(f"{name} in DVC's cache is damaged: it is not used, and now in {target.parent}", file=sys.stderr)
    return name


def place(cache: Path, md5: str) -> Path:
    """Return the path of an object in DVC's cache."""
    return cache / md5[:2] / md5[2:]


def listing(cache: Path, md5: str) -> list[dict[str, str]]:
    """Return the files of a folder that is in DVC's cache; empty if `md5` is a file's.

    It is also empty if their list is missing, or doesn't match its name. DVC keeps a list even of a folder
    that is not cached, and nothing quarantines that.
    """
    path = place(cache, md5)
    if not md5.endswith(FOLDER_ENDING) or not path.is_file():
        return []
    content = path.read_bytes()
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5.removesuffix(FOLDER_ENDING):
        return []
    entries: list[dict[str, str]] = json.loads(content)
    return entries
