"""Record a finished stage with DVC: its outputs go to the cache, their hashes and its inputs' into `dvc.lock`.

Called by the stage runner (`python -m pipeline STAGE`), so that `dvc status` is clean after Snakemake ran a stage.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import yaml

from pipeline.config.params import with_defaults
from pipeline.core.errors import DataError, MachineError, ToolError
from pipeline.core.locks import Held, lock_file, take
from pipeline.core.owner import end_with_owner
from pipeline.core.strict_yaml import read_fast, read_strict
from pipeline.workflow.code_keys import CODE, FOLDER, Package, key_file, write_keys
from pipeline.workflow.scraps import working
from pipeline.workflow.stages import code_of_stages, filled, items_of, stage_modules, value_at

LARGE = 2**20  # bytes


class Entry(NamedTuple):
    """What a stage reads and writes, relative to the project's folder."""

    deps: list[str]
    outs: list[str]


class Recorded(NamedTuple):
    """An output as `dvc.lock` has it: the stage that wrote it, its path in the project, its md5 (of a folder: `….dir`)."""

    stage: str
    path: Path
    md5: str


def record(stage: str, root: Path) -> None:
    """Have DVC record `stage` ("train", "quantize@Q4_K_M") as it now lies below `root`.

    Does nothing where DVC itself runs the stage, or where `root` is no DVC project that knows it. The raw data that the
    stage read is recorded with it, as `dvc repro` does. Raises `ToolError` with DVC's own words.
    """
    known = _stage(stage, root)
    if known is None or "DVC_STAGE" in os.environ:
        return
    sources = [f"{dep}.dvc" for dep in known.get("deps", []) if (root / f"{dep}.dvc").is_file()]
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "commit", "--force", stage, *sources]
    with recording(root) as lock:
        # a session of its own, and the lock with it: whoever kills the run can't leave half a dvc.lock behind
        done = subprocess.run(
            command,
            cwd=root,
            capture_output=True,
            text=True,
            start_new_session=True,
            pass_fds=[lock.fileno()],
            check=False,
        )
    if done.returncode:
        errors = [
            line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR")
        ]
        said = " ".join(errors) or f"exit code {done.returncode}"
        raise ToolError(
            "Q-WORKFLOW-014",
            f"DVC could not record {stage} ({said}): fix that, then run the same command again",
        )


@contextmanager
def recording(root: Path) -> Iterator[IO[str]]:
    """Wait until no stage below `root` is being recorded, and keep others from it; gives the lock's file."""
    with _record_lock(root) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


@contextmanager
def reading(root: Path) -> Iterator[None]:
    """The same for who only reads: others may do so too. Where nothing can be written, nothing is being recorded."""
    try:
        lock = _record_lock(root)
    except OSError:
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def _record_lock(root: Path) -> IO[str]:
    path = root / ".dvc" / "tmp" / "quench-record.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a")


@contextmanager
def open_project(root: Path, *, wait: bool = False, alone: bool = True) -> Iterator[Any]:
    """The DVC project at `root` while no stage is being recorded, its errors in plain words; `wait` for its lock, or give up soon.

    Who isn't `alone` lets others read meanwhile.
    """
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.repo import Repo
    from dvc.scm import SCMError

    try:
        with recording(root) if alone else reading(root), Repo(str(root), _wait_for_lock=wait) as repo:
            yield repo
    except LockError as error:
        raise MachineError(
            "Q-WORKFLOW-015", f"DVC is at work in this folder ({_words(error)}): wait for it, then run again"
        ) from error
    except (DvcException, SCMError) as error:
        raise ToolError(
            "Q-WORKFLOW-016", f"DVC can't read this project ({_words(error)}): fix that, then run again"
        ) from error
    except OSError as error:  # a full disk, a folder that is not ours
        raise MachineError(
            "Q-WORKFLOW-017", f"DVC can't work in this folder ({_words(error)}): fix that, then run again"
        ) from error


def inputs_state(stage: str, root: Path) -> Any:
    """What a user may edit while `stage` runs: its parameters, its code and the raw data; None where nothing is recorded.

    DVC hashes these when a stage ends. Compared from before and after, they keep `dvc.lock` from naming what the stage
    never read.
    """
    known = _stage(stage, root)
    if known is None:
        return None
    params = read_strict(root / "params.yaml")[0]
    tracked = {key: value_at(params, key.partition(".")[0]) for key in known.get("params", [])}
    edited = [
        root / dep
        for dep in known.get("deps", [])
        if dep.startswith(("data/raw", "data/guard", "data/evaluation"))
    ]
    files = [
        path
        for dep in edited
        for path in ([dep] if dep.is_file() else sorted(dep.rglob("*")))
        if path.is_file()
    ]
    code = Package().key(*stage_modules(stage)) if _names_key(stage, known.get("deps", [])) else ""
    return (
        tracked,
        code,
        {
            str(path): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in files
            if "__pycache__" not in path.parts
        },
    )


def refresh_keys(stage: str, root: Path) -> None:
    """Write the keys of the code that `stage` is about to run, where this project has them: a stage that is started by hand may be of newer code."""
    if (root / FOLDER).is_dir() or _names_key(stage, stages_of(root).get(stage, Entry([], [])).deps):
        write_keys(root, code_of_stages())


def _names_key(stage: str, deps: list[str]) -> bool:
    return key_file(stage.partition("@")[0]) in deps


def seems_unchanged(stage: str, root: Path) -> bool:
    """Whether `stage` may be as `dvc.lock` recorded it: a look of milliseconds at parameters, sizes and code.

    False is certain; True is for DVC to confirm, by the content of large files and folders.
    """
    entry = _locked(root).get(stage)
    if entry is None:
        return False
    for file, recorded in entry.get("params", {}).items():
        params = read_strict(root / file)[0]
        if any(value_at(params, key) != value for key, value in recorded.items()):
            return False
    return not any(_surely_differs(root / dep["path"], dep) for dep in entry.get("deps", []))


def is_about(params: Path | None, root: Path) -> bool:
    """Whether dvc.lock is about these settings: it is about those of the project's params.yaml alone."""
    return params is None or params.resolve() == (root / "params.yaml").resolve()


def recorded(root: Path) -> list[Recorded]:
    """Every output that a stage of `dvc.yaml` has in `dvc.lock`, but for keys of code; nothing where `root` is no DVC project that has run."""
    stages, entries = stages_of(root), _locked(root)
    return [
        Recorded(name, Path(out["path"]), out["md5"])
        for name, entry in entries.items()
        for out in entry.get("outs", [])
        if name in stages and name != CODE and out["path"] in stages[name].outs and "md5" in out
    ]


def _locked(root: Path) -> dict[str, Any]:
    """What `dvc.lock` holds of each stage. Raises `DataError` where it is damaged: by a kill, or by a merge with marks of conflicts in it."""
    lock = root / "dvc.lock"
    if not (root / ".dvc").is_dir() or not lock.is_file():
        return {}
    with reading(root):  # DVC writes dvc.lock in place
        try:
            found = read_fast(lock)
            stages = {} if found is None else found.get("stages", {})
            if all(
                isinstance(out["path"], str) for entry in stages.values() for out in entry.get("outs", [])
            ):
                return dict(stages)
        except (yaml.YAMLError, UnicodeDecodeError, AttributeError, KeyError, TypeError, RecursionError):
            pass
    raise DataError(
        "Q-WORKFLOW-018",
        f"{lock} is damaged, so nothing can be compared with it: `git checkout dvc.lock`, or `snakemake`, "
        "which sets it aside",
    )


def stages_of(root: Path) -> dict[str, Entry]:
    """The stages of `dvc.yaml` with the values of `params.yaml` filled in, one for each level or model.

    Those that can't be read so are left out (somebody's own may stand beside ours); DVC says what is wrong with them.
    """
    found: dict[str, Entry] = {}
    with suppress(
        OSError, yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError, RecursionError
    ):
        params, stages = (
            with_defaults(read_fast(root / "params.yaml")),
            read_fast(root / "dvc.yaml")["stages"],
        )
        for name, stage in stages.items():
            with suppress(KeyError, TypeError, AttributeError, StopIteration):
                found |= dict(_entries(name, stage, params))
    return found


def _entries(name: str, stage: dict[str, Any], params: dict[str, Any]) -> Iterator[tuple[str, Entry]]:
    own = stage.get("do", stage)
    for ending, item in items_of(stage.get("foreach") or stage.get("matrix"), params):
        values = params | {"item": item}
        paths = {
            kind: [filled(_path(one), values) for one in own.get(kind, [])]
            for kind in ("deps", "outs", "metrics", "plots")
        }
        outs = [*paths["outs"], *paths["metrics"], *paths["plots"]]
        yield f"{name}@{ending}" if ending else name, Entry(paths["deps"], outs)


def _path(entry: str | dict[str, Any]) -> str:
    return entry if isinstance(entry, str) else next(iter(entry))


@contextmanager
def running(stage: str, root: Path) -> Iterator[None]:
    """Run `stage` below `root` in this process: nobody else runs it meanwhile, and it ends with the run that started it.

    What killed runs left is swept first. Raises `MachineError` if another process runs the stage.
    """
    end_with_owner(stage)
    try:
        lock = take(lock_file(stage, root))
    except Held as other:
        raise MachineError(
            "Q-WORKFLOW-011",
            f"{stage} is already running as process {other} in {root.resolve()}: wait until it is done, or "
            "end that process",
        ) from None
    with lock, working(root):
        yield


def _stage(stage: str, root: Path) -> dict[str, Any] | None:
    """The stage's entry in `dvc.yaml`, or None where DVC does not know it."""
    file = root / "dvc.yaml"
    if not (root / ".dvc").is_dir() or not file.is_file():
        return None
    name, _, item = stage.partition("@")
    entry: dict[str, Any] | None = read_fast(file).get("stages", {}).get(name)
    return entry.get("do", entry) if entry and item else entry


def _surely_differs(path: Path, recorded: dict[str, Any]) -> bool:
    """Whether an input can't be the recorded one; a folder's and a large file's content are left to DVC, which remembers hashes."""
    if not path.is_file():
        return not path.is_dir() or "nfiles" not in recorded
    size = path.stat().st_size
    return size != recorded.get("size") or (
        size < LARGE
        and hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() != recorded.get("md5")
    )


def _words(error: Exception) -> str:
    return " ".join(str(error).split())
