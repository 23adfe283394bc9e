"""What scorers get to know of each prompt, beside its tokens: a line for each row of the Parquet file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.chat.prompts import question
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.stages.preprocess.stats import row_name
from pipeline.stages.preprocess.tables import Written


def write_questions(target: Path, table: Path, rows: Path) -> None:
    """Write the questions of the sequences in `table` (Parquet), in its order; `rows` is what it was made
    of.
    """
    names = Written(table).row_ids
    if write_rows(target, questions(rows, names)) != len(names):
        raise AssertionError(f"{target.name} has not a line for each row of {table.name}")


def questions(rows: Path, names: list[str]) -> Iterator[dict[str, Any]]:
    """The questions of the rows of these names, which are in the order of `rows`."""
    wanted = iter(names)
    awaited = next(wanted, None)
    for number, row in enumerate(read_rows(rows), start=1):
        if (name := row_name(row, rows.name, number)) == awaited:
            yield question(name, row)
            awaited = next(wanted, None)
