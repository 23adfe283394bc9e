"""What scorers get to know of each prompt, beside its tokens: a line for each row of the Parquet file; and
the user's own functions that reward, as they are now.

The functions are copied, so that data/tokens is all that training depends on, and only what it depends on.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.chat.prompts import question
from pipeline.config.scorers import NAME
from pipeline.config.sections.grpo import Grpo
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.metrics.own import function
from pipeline.stages.preprocess.stats import row_name
from pipeline.stages.preprocess.tables import Written


def write_questions(target: Path, table: Path, rows: Path) -> None:
    """Write the questions of the sequences in `table` (Parquet), in order; `rows` made the table."""
    names = Written(table).row_ids
    if write_rows(target, questions(rows, names)) != len(names):
        raise AssertionError(f"{target.name} has not a line for each row of {table.name}")


def copy_rewards(target: Path, settings: Grpo, root: Path) -> None:
    """Copy the files below `root`/data/evaluation that reward: those of functions that `rewards` names, and
    those that are in the command of `external`. Raises `ConfigError` if a function is missing.
    """
    folder = root / "data/evaluation"
    named = (one.removeprefix("python:") for one in settings.rewards if one.startswith("python:"))
    for name in filter(None, map(NAME.fullmatch, named)):
        function(name[0], folder)
        _copy(folder / name["file"], folder, target)
    for word in settings.external.command if settings.external else ():
        if (root / word).is_file() and (root / word).resolve().is_relative_to(folder.resolve()):
            _copy((root / word).resolve(), folder.resolve(), target)


def _copy(file: Path, folder: Path, target: Path) -> None:
    place = target / file.relative_to(folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, place)


def questions(rows: Path, names: list[str]) -> Iterator[dict[str, Any]]:
    """The questions of the rows of these names, which are in the order of `rows`."""
    wanted = iter(names)
    awaited = next(wanted, None)
    for number, row in enumerate(read_rows(rows), start=1):
        if (name := row_name(row, rows.name, number)) == awaited:
            yield question(name, row)
            awaited = next(wanted, None)
