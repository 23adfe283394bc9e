"""Folders in which phases leave the inputs of later ones: one for each phase, or for each shard of one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic_core import to_json

from pipeline.core.errors import DataError, MachineError
from pipeline.core.publish import publishing
from pipeline.stages.curate.spool import Rows
from pipeline.workflow.cluster.shards import KEY

ROWS = "rows.jsonl"  # clean rows of a shard; also the pairs made of all rows
Value = TypeVar("Value")


@dataclass(frozen=True)
class Work:
    """The folders of one run of `shards`, below `folder`.

    `key` is a hash of all inputs of the run, and each folder records the key that it was made for. Without a
    key, a single process runs all phases, and its folders aren't published one by one.
    """

    folder: Path
    shards: int = 1
    key: str = ""

    def path(self, phase: str, shard: int | None = None) -> Path:
        """Return the folder of a phase, or of one shard (from 0) of it: clean-3-of-7, sample-of-7."""
        part = "" if shard is None else f"-{shard + 1}"
        return self.folder / f"{phase}{part}-of-{self.shards}"

    @contextmanager
    def making(self, phase: str, shard: int | None = None) -> Iterator[Path]:
        """Yield a folder to fill, which appears at once."""
        target = self.path(phase, shard)
        if not self.key:
            target.mkdir(parents=True)
            yield target
            return
        with publishing(target) as aside:
            aside.mkdir(parents=True)
            yield aside
            (aside / KEY).write_text(self.key, encoding="ascii")

    def filled(self, phase: str, shard: int | None = None) -> Path:
        """Return the folder that an earlier phase filled. Raises `DataError` if it is missing, `MachineError`
        if it was made of other inputs.
        """
        folder = self.path(phase, shard)
        if not folder.is_dir():
            raise DataError(
                "Q-CURATE-016",
                f"{folder} is missing: run `snakemake --set-scatter curate={self.shards}`, which makes it",
            )
        if self.key and (folder / KEY).read_text(encoding="ascii") != self.key:
            raise MachineError(
                "Q-CURATE-017",
                f"params.yaml, data/raw, data/guard, models/base.json or code has changed since {folder} was "
                "made: run the same command again",
            )
        return folder

    def each(self, phase: str) -> list[Path]:
        """Return the folders of all shards."""
        return [self.filled(phase, shard) for shard in range(self.shards)]

    def rows(self) -> Rows:
        """Return the clean rows of all shards."""
        return Rows([folder / ROWS for folder in self.each("clean")])


def dump(path: Path, value: Any) -> None:
    """Write `value` as JSON. `load` returns it with its keys in their order."""
    path.write_bytes(to_json(value))


def load(path: Path, kind: type[Value]) -> Value:
    """Read a value of this type that `dump` wrote."""
    return TypeAdapter(kind).validate_json(path.read_bytes())
