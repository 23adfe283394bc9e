"""What dvc.yaml and dvc.lock say of the stages, and whether a stage may be as dvc.lock recorded it."""

import fcntl
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import yaml

from pipeline.config.params import with_defaults
from pipeline.core.errors import DataError, MachineError
from pipeline.core.locks import locked
from pipeline.core.strict_yaml import read_strict
from pipeline.core.yaml_readers import read_fast
from pipeline.workflow.code_keys import CODE, SETTINGS
from pipeline.workflow.receipts import is_remote, receipts
from pipeline.workflow.stages import Values, items_of

LARGE = 2**20  # bytes
RECORD_LOCK = Path(".dvc/tmp/quench-record.lock")


class Entry(NamedTuple):
    """What a stage reads and writes, relative to the project's folder."""

    deps: list[str]
    outs: list[str]


class Recorded(NamedTuple):
    """An output as `dvc.lock` has it: the stage that wrote it, its path in the project, its md5 (of a folder:
    `….dir`).
    """

    stage: str
    path: Path
    md5: str


def recording(root: Path) -> AbstractContextManager[IO[str]]:
    """Wait until no stage below `root` is being recorded, and keep others from it; gives the lock's file."""
    return locked(root / RECORD_LOCK, fcntl.LOCK_EX)


def reading(root: Path) -> AbstractContextManager[object]:
    """The same for who only reads: others may do so too. Where nothing can be written, nothing is being
    recorded.
    """
    path = root / RECORD_LOCK
    if is_remote():  # who records does so when no job runs, and its lock would mean nothing here
        return nullcontext()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError:
        return nullcontext()
    return locked(path, fcntl.LOCK_SH)


def seems_unchanged(stage: str, root: Path) -> bool:
    """Whether `stage` may be as `dvc.lock` recorded it: a look of milliseconds at parameters, sizes and code.

    False is certain; True is for DVC to confirm, by the content of large files and folders.
    """
    entry = _locked(root).get(stage)
    if entry is None:
        return False
    for file, recorded in entry.get("params", {}).items():
        params = Values(read_strict(root / file)[0])
        if any(params.at(key) != value for key, value in recorded.items()):
            return False
    return not any(
        _surely_differs(root / dep["path"], dep.get("size"), dep.get("md5"), "nfiles" in dep)
        for dep in entry.get("deps", [])
    )


def recorded(root: Path) -> list[Recorded]:
    """Every output that a stage of `dvc.yaml` has in `dvc.lock`, or in the receipt of a job that is still to
    be recorded, but for keys of code and the settings; nothing where `root` is no DVC project that has run.
    """
    stages = stages_of(root)
    written = {
        name: {out["path"]: out["md5"] for out in entry.get("outs", []) if "md5" in out}
        for name, entry in _locked(root).items()
    } | {receipt.stage: receipt.outputs for receipt in receipts(root)}
    return [
        Recorded(name, Path(path), md5)
        for name, outputs in written.items()
        for path, md5 in outputs.items()
        if name in stages and name not in (CODE, SETTINGS) and path in stages[name].outs
    ]


def _locked(root: Path) -> dict[str, Any]:
    """What `dvc.lock` holds of each stage. Raises `DataError` where it is damaged: by a kill, or by a merge
    with marks of conflicts in it.
    """
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

    Those that can't be read so are left out (somebody's own may stand beside ours); DVC says what is wrong
    with them.
    """
    found: dict[str, Entry] = {}
    with suppress(
        OSError, yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError, RecursionError
    ):
        values, stages = (
            Values(with_defaults(read_fast(root / "params.yaml"))),
            read_fast(root / "dvc.yaml")["stages"],
        )
        for name, stage in stages.items():
            with suppress(KeyError, TypeError, AttributeError, StopIteration):
                found |= dict(_entries(name, stage, values))
    return found


def inputs_of(stage: str, root: Path) -> list[str]:
    """The paths that `stage` reads, by `dvc.yaml`; none if it doesn't name the stage."""
    return stages_of(root).get(stage, Entry([], [])).deps


def _entries(name: str, stage: dict[str, Any], values: Values) -> Iterator[tuple[str, Entry]]:
    own = stage.get("do", stage)
    for ending, item in items_of(stage.get("foreach") or stage.get("matrix"), values):
        fill = values.of(item).fill
        paths = {
            kind: [fill(_path(entry)) for entry in own.get(kind, [])]
            for kind in ("deps", "outs", "metrics", "plots")
        }
        outs = [*paths["outs"], *paths["metrics"], *paths["plots"]]
        yield f"{name}@{ending}" if ending else name, Entry(paths["deps"], outs)


def _path(entry: str | dict[str, Any]) -> str:
    return entry if isinstance(entry, str) else next(iter(entry))


def entry_of(stage: str, root: Path) -> dict[str, Any] | None:
    """The stage's entry in `dvc.yaml`, or None where DVC does not know it."""
    file = root / "dvc.yaml"
    if not (root / ".dvc").is_dir() or not file.is_file():
        return None
    name, _, item = stage.partition("@")
    entry: dict[str, Any] | None = read_fast(file).get("stages", {}).get(name)
    return entry.get("do", entry) if entry and item else entry


def params_of(entry: Mapping[str, Any]) -> list[str]:
    """The keys that a stage of `dvc.yaml` depends on, in whichever file of settings."""
    files = [{"": [key]} if isinstance(key, str) else key for key in entry.get("params", [])]
    return [key for file in files for keys in file.values() for key in keys or []]


def _surely_differs(path: Path, size: int | None, md5: str | None, is_folder: bool) -> bool:
    """Whether an input can't be the recorded one; a folder's and a large file's content are left to DVC,
    which remembers hashes.
    """
    if not path.is_file():
        return not path.is_dir() or not is_folder
    now = path.stat().st_size
    return now != size or (
        now < LARGE and hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() != md5
    )


def check_no_writer(rwlock: Path) -> None:
    """Raise `MachineError` if a `dvc repro` that is alive writes outputs; drop a file that a kill cut
    short.
    """
    import psutil

    try:
        writers = (
            json.loads(rwlock.read_text(encoding="utf-8")).get("write", {}).values()
            if rwlock.exists()
            else []
        )
    except ValueError:
        return rwlock.unlink()
    for pid in {int(writer["pid"]) for writer in writers}:
        if psutil.pid_exists(pid):
            raise MachineError(
                "Q-WORKFLOW-015",
                f"DVC is at work in this folder (process {pid}): wait for it, then run again",
            )
    return None


def set_aside_if_cut(file: Path) -> None:
    """Set a `dvc.lock` aside that a kill cut short while DVC wrote it; the stages whose record is lost run
    again.
    """
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from voluptuous import Invalid

    try:
        if file.exists():
            COMPILED_LOCKFILE_SCHEMA(read_fast(file))
    except (yaml.YAMLError, Invalid, UnicodeDecodeError):
        broken = file.replace(file.with_name("dvc.lock.broken"))
        print(
            f"dvc.lock was cut short by a kill: it is now {broken.name}, and stages without a record run "
            "again",
            file=sys.stderr,
        )
