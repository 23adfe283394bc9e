"""The state in which a project was found settled: nothing stale, damaged or missing.

DVC takes a second to open a project. As long as no file has changed since, the verdict is the same, so a run
with nothing to do needn't open it. A file has changed if its inode, size, date or change time has, which no
ordinary program can set back.
"""

import os
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

from pipeline.core.hashing import json_hash
from pipeline.core.publish import read_if_there, remove, write_json
from pipeline.workflow.cluster_jobs import is_remote
from pipeline.workflow.state.dvc_project import check_no_writer
from pipeline.workflow.state.hashes import YOUNG
from pipeline.workflow.state.lockfile import Entry, all_stages

FILE = Path(".quench/settled.json")
RECORDS = ("dvc.yaml", "dvc.lock", "params.yaml", ".dvc/config", ".dvc/config.local", ".dvcignore")
CACHE = Path(".dvc/cache/files/md5")  # the folders in it change when DVC adds or removes an object
SOURCES = ("*.dvc", "*/*.dvc", "*/*/*.dvc")  # DVC's records of the users' data


def is_settled(root: Path) -> bool:
    """Return True if nothing has changed since the project was found settled.

    Raises `MachineError` if DVC writes here.
    """
    if is_remote() or not (root / FILE).is_file():
        return False
    check_no_writer(root / ".dvc/tmp/rwlock")
    try:
        return read_if_there(root / FILE).get("state") == state_of(root)
    except (ValueError, AttributeError):
        return False


def remember(root: Path) -> None:
    """Record that the project is settled as it is now, unless that can't be told by its files."""
    newest = time.time_ns() - YOUNG
    state = state_of(root, newest)
    if state is None:
        remove(root / FILE)
    else:
        write_json(root / FILE, {"state": state})


def state_of(root: Path, newest: int | None = None) -> str | None:
    """Return a hash of the state of all files that the verdict depends on.

    Return None if there are stages that only DVC can read, or a file that has changed after `newest`
    (nanoseconds): it could change once more within the same change time.
    """
    stages = all_stages(root)
    if stages is None or any(root.glob("*/dvc.yaml")):
        return None
    states: dict[str, list[int] | None] = {}
    for path in _paths(root, stages.values()):
        try:
            state = path.stat()
        except OSError:
            states[str(path)] = None
            continue
        if newest is not None and state.st_ctime_ns > newest:
            return None
        states[str(path)] = [state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]
    return json_hash({"files": states, "dvc": version("dvc")})


def _paths(root: Path, stages: Iterable[Entry]) -> Iterator[Path]:
    """Yield the records, the cache's folders, and all inputs and outputs with what is below them."""
    sources = [source for pattern in SOURCES for source in root.glob(pattern) if source.is_file()]
    named = {path for stage in stages for path in (*stage.deps, *stage.outs)}
    yield from (root / name for name in RECORDS)
    yield from sorted(sources)
    yield from sorted((root / CACHE).glob("*"))
    for path in sorted({root / name for name in named} | {source.with_suffix("") for source in sources}):
        yield from _below(path)


def _below(path: Path) -> Iterator[Path]:
    """Yield a path, and all files and folders below it."""
    yield path
    for folder, folders, names in os.walk(path):
        folders.sort()
        yield from (Path(folder, name) for name in folders)
        yield from (Path(folder, name) for name in sorted(names))
