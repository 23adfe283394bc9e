"""Versions of a project's data: the workspace, and the data that a git revision's `dvc.lock` names.

An old version is read through DVC, from its cache or its remote; nothing is checked out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson
import yaml

from pipeline.chat.rows import Row
from pipeline.core.errors import ConfigError, DataError, ToolError
from pipeline.core.git import ask_git

SPLITS = ("train", "val", "test")
FINAL = "data/final"


@dataclass(frozen=True)
class Version:
    """One version of the data. `name` is the user's name for it."""

    name: str
    open: Callable[[str], BinaryIO]  # raises DataError if the file is not available

    def rows(self) -> Iterator[tuple[str, Row]]:
        """Yield (split, row) of every row, one at a time."""
        for split in SPLITS:
            with self.open(f"{FINAL}/{split}.jsonl") as file:
                for number, line in enumerate(file, start=1):
                    try:
                        yield split, orjson.loads(line)
                    except ValueError:
                        raise DataError(
                            "Q-CORE-006",
                            f"{FINAL}/{split}.jsonl of {self.name} is not JSONL at line {number}: run stage "
                            "curate again",
                        ) from None

    def stats(self) -> dict[str, Any]:
        """Return `reports/data.json`, or {} if this version has none."""
        try:
            with self.open("reports/data.json") as file:
                return cast("dict[str, Any]", orjson.loads(file.read()))
        except (DataError, ValueError):
            return {}


def split_file(root: Path, split: str) -> Path:
    """Return the file of a split in the workspace. Raises `DataError` if it is missing."""
    path = root / FINAL / f"{split}.jsonl"
    if not path.exists():
        raise DataError("Q-CORE-001", f"{path} is missing: run `snakemake curate`, which writes it")
    return path


def workspace(root: Path) -> Version:
    """Return the version that is below `root` now."""

    def opened(path: str) -> BinaryIO:
        try:
            return (root / path).open("rb")
        except OSError as error:
            raise DataError(
                "Q-CORE-001",
                f"{root / path} can't be read ({error.strerror}): run `snakemake curate`, which writes it",
            ) from None

    return Version("the workspace", opened)


def revision(root: Path, name: str, holding: str = FINAL) -> Version:
    """Return what git revision `name` recorded. Raises `ConfigError` if there is no such revision,
    `DataError` if it has no `holding`, an output of a stage, and `ToolError` if Git fails.
    """
    found = ask_git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if found is None:
        raise ConfigError(
            "Q-COMMANDS-020",
            f"git knows no revision {name!r} in {root.resolve()}: `git log --oneline -- dvc.lock` lists "
            "those with data",
        )
    commit = found.decode().strip()
    lock = ask_git(root, "show", f"{commit}:./dvc.lock")
    if lock is None:
        raise DataError(
            "Q-COMMANDS-021",
            f"{name} has no dvc.lock, so no data was recorded with it: `git log --oneline -- dvc.lock` "
            "lists those that have",
        )
    if not any(path == holding or path.startswith(f"{holding}/") for path in _outputs(lock)):
        raise DataError(
            "Q-COMMANDS-021",
            f"dvc.lock of {name} names no {holding}: the stage that makes it had not run, so choose a later "
            "revision",
        )
    from dvc.api import DVCFileSystem
    from dvc.exceptions import DvcException
    from dvc_data.index import DataIndexDirError
    from dvc_objects.fs.errors import AuthError, RemoteMissingDepsError

    @cache
    def files() -> DVCFileSystem:
        return DVCFileSystem(repo=str(root), rev=commit)

    def opened(path: str) -> BinaryIO:
        try:
            return cast("BinaryIO", files().open(path, "rb"))
        except (OSError, DataIndexDirError):
            raise DataError(
                "Q-COMMANDS-022",
                f"{path} of {name} is neither in DVC's cache nor in a remote: `dvc push` it where it was "
                "made, then `dvc fetch -A` here",
            ) from None
        except (DvcException, ImportError, AuthError, RemoteMissingDepsError) as error:
            raise ToolError(
                "Q-COMMANDS-024",
                f"DVC can't read {path} of {name} ({error}): fix that, then run the same command again",
            ) from None

    return Version(name, opened)


def _outputs(lock: bytes) -> set[str]:
    """Return the output paths in a dvc.lock."""
    try:
        stages = yaml.safe_load(lock)["stages"].values()
        return {output["path"] for stage in stages for output in stage.get("outs") or []}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError):
        return set()
