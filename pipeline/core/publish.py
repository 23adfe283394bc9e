"""Publishing of artifacts, completely or not at all.

Write a temporary sibling, check it, fsync it, rename it, and fsync the folder.
"""

import errno
import fnmatch
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError, DataError, MachineError
from pipeline.core.special_files import need_file
from pipeline.core.text import to_nowhere
from pipeline.core.units import size_text

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
DISK_MARGIN = 1.2  # A fifth more than the predicted bytes must be free.
# suffixes of an artifact's temporary siblings, whose names begin with a dot
WRITING = ".writing"
OLD = ".old"
SCRATCH = (".curating", ".merging", ".*.merging", ".parity")  # names of scratch folders
SCRAPS = (f".*{WRITING}", WRITING, f".?*{OLD}", *SCRATCH)


def need_folder(root: Path) -> None:
    """Raise `ConfigError` unless `root` is a folder that can be read."""
    if not os.path.isdir(root):  # noqa: PTH112 (pathlib's raises for a name that is too long)
        raise ConfigError(
            "Q-CORE-003", f"{root} is not a folder: --root names the one with data/, models/ and reports/"
        )
    if not os.access(root, os.R_OK | os.X_OK):
        raise ConfigError(
            "Q-CORE-003", f"{root} can't be read: correct its rights, or name another with --root"
        )


def need_disk(folder: Path, predicted_bytes: int) -> None:
    """Raise `MachineError` unless `folder`'s disk has room for `predicted_bytes` and a fifth more."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(
            "Q-CORE-005",
            f"{folder} can't be made ({error.strerror or error}): correct the path or the folder's rights, "
            "then run again",
        ) from error
    free = shutil.disk_usage(folder).free
    needed = int(predicted_bytes * DISK_MARGIN)
    if free < needed:
        raise MachineError(
            "Q-CORE-004",
            f"{folder} needs {size_text(needed)} and its disk has {size_text(free)} free: "
            "make room, then run the same command again",
        )


@contextmanager
def publishing(target: Path, check: Callable[[Path], object] | None = None) -> Iterator[Path]:
    """Give a temporary sibling of `target` to write to (a file or a folder), then put it in `target`'s place.

    `check` reads the finished sibling and raises if it is incomplete; then nothing is published. If the body
    raises, the previous artifact stays unchanged.
    """
    aside = target.with_name(f".{target.name}{WRITING}")
    old = target.with_name(f".{target.name}{OLD}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        recover(target, old)
        remove(aside)
        yield aside
        if check:
            check(aside)
        _fsync_tree(aside)
        _swap(aside, target, old)
        _fsync(target.parent)
    except OSError as error:
        if not _is_about(error, target, aside, old):
            raise  # something that the body read
        raise unwritable(error, target) from error
    finally:
        with suppress(OSError):  # Leftovers are removed later; the current error is more useful.
            remove(aside)


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Give an empty folder of this name, one of `SCRATCH`, while the body runs.

    What a killed run left in it is deleted first. Raises `MachineError` if the body can't write there.
    """
    if not is_scrap(folder.name):
        raise AssertionError(f"{folder.name} is not in SCRATCH: nothing would remove what a kill leaves")
    try:
        remove(folder)
        folder.mkdir(parents=True)
        yield folder
    except OSError as error:
        if not _is_about(error, folder, folder, folder):
            raise  # something that the body read
        raise unwritable(error, folder) from error
    finally:
        with suppress(OSError):
            remove(folder)


@contextmanager
def printing() -> Iterator[None]:
    """Raise `MachineError` if there is no room for the body's output or another write.

    An example is `> FILE` on a full disk.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        with suppress(OSError, ValueError):  # The interpreter would write the rest again when it exits.
            to_nowhere(sys.stdout)
        where = error.filename or "the output of this command, or a file of its own,"
        raise MachineError(
            "Q-CORE-012",
            f"{where} can't be written ({error.strerror}): free the disk, or send the output elsewhere, then "
            "run again",
        ) from error


def unwritable(error: OSError, target: Path) -> MachineError:
    """Return the error of a file that can't be written."""
    return MachineError(
        "Q-CORE-005",
        f"{target} can't be written ({error.strerror or error}): free the disk or correct the folder's "
        "rights, then run again",
    )


def _is_about(error: OSError, target: Path, aside: Path, old: Path) -> bool:
    """Return True if the error is about the artifact, its sibling or one of their folders.

    It is also True if the error names no file (a full disk).
    """
    if not isinstance(error.filename, str | bytes):
        return True
    path = Path(os.fsdecode(error.filename))
    return aside.name in path.parts or path in (target, old, *target.parents)


def _swap(aside: Path, target: Path, old: Path) -> None:
    if not target.is_dir() or target.is_symlink():
        aside.replace(target)
        return
    # A folder can't be renamed over another: move the old one away first, and delete it last.
    target.rename(old)
    try:
        aside.rename(target)
    except OSError:
        old.rename(target)
        raise
    remove(old)


def recover(target: Path, old: Path) -> bool:
    """Undo what a kill inside `_swap` left. Return True if the old artifact is back in its place."""
    back = old.exists() and not target.exists()
    if back:
        old.rename(target)
    remove(old)
    return back


def is_scrap(name: str) -> bool:
    """Return True if a file or folder of this name is incomplete.

    It is of use only to the process that writes it.
    """
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in SCRAPS)


def read_json(path: Path, remedy: str) -> Any:
    """Return JSON of `write_json` or another tool.

    Raises `DataError` with `remedy` if it is missing or truncated.
    """
    need_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            "Q-CORE-006", f"{path} is missing or not JSON ({type(error).__name__}): {remedy}"
        ) from error


def read_if_there(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is no file.

    Raises `ValueError` if it is not JSON.
    """
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return value


def write_json(target: Path, value: Any, *, allow_nan: bool = False) -> None:
    """Publish `value` as indented UTF-8 JSON with sorted keys.

    Raises `ValueError` for NaN and infinities unless `allow_nan` is set: the config.json of a model with
    state spaces can contain an infinity.
    """
    write_text(
        target, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=allow_nan) + "\n"
    )


def write_text(target: Path, text: str) -> None:
    """Publish `text` as UTF-8."""
    with publishing(target) as aside:
        aside.write_text(text, encoding="utf-8")


def remove(path: Path) -> None:
    """Delete a file or a folder if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def _fsync_tree(path: Path) -> None:
    if path.is_dir():
        for child in path.rglob("*"):
            if not child.is_symlink():
                _fsync(child)
    _fsync(path)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
