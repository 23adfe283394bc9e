"""What scorers get to know of each prompt, beside its tokens: a line for each row of the Parquet file; and
the user's own functions that reward, as they are now.

The functions are copied, so that data/tokens is all that training depends on, and only what it depends on.
"""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pipeline.chat.prompts import question
from pipeline.config.scorers import NAME
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.metrics.own import function
from pipeline.stages.preprocess.stats import row_name
from pipeline.stages.preprocess.tables import Written


def write_questions(target: Path, table: Path, rows: Path) -> None:
    """Write the questions of the sequences in `table` (Parquet), in its order; `rows` is what it was made
    of.
    """
    names = Written(table).row_ids
    if write_rows(target, questions(rows, names)) != len(names):
        raise AssertionError(f"{target.name} has not a line for each row of {table.name}")


def copy_rewards(target: Path, spellings: Iterable[str], functions: Path) -> None:
    """Copy the files that `train.grpo.rewards` names functions of from the folder `functions`. Raises
    `ConfigError` if one is missing, or is no Python with that function.
    """
    for spelling in spellings:
        kind, _, name = spelling.partition(":")
        if kind == "python" and (match := NAME.fullmatch(name)):
            function(name, functions)
            (target / match["file"]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(functions / match["file"], target / match["file"])


def questions(rows: Path, names: list[str]) -> Iterator[dict[str, Any]]:
    """The questions of the rows of these names, which are in the order of `rows`."""
    wanted = iter(names)
    awaited = next(wanted, None)
    for number, row in enumerate(read_rows(rows), start=1):
        if (name := row_name(row, rows.name, number)) == awaited:
            yield question(name, row)
            awaited = next(wanted, None)
