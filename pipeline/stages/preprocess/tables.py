"""Contents of data/tokens: tokenized rows as Parquet, a packed row a line, with the lengths of its
sequences. For rewards also the scorers' input for each prompt, and a copy of the user's functions.

Columns: `input_ids`, `labels` (int32, of all its sequences, one after the other), `seq_lengths` (the trainer
restarts positions there), `row_ids` (the row of data/final that each sequence comes from; `ID#2` is the
second turn of an unfolded row, `ID#chosen` an answer of a pair), `roles` (int8, for each sequence: 1
preferred, -1 not preferred, 0 learned as it is) and `weights` (float32, for each sequence: the factor of its
loss).

The functions are copied, so that the hash of data/tokens covers all the data that training depends on, and
nothing else.
"""

import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
from pyarrow import parquet

from pipeline.chat.prompts import question
from pipeline.chat.tokens import Encoded, trained_positions
from pipeline.config.scorers import NAME
from pipeline.config.sections.training import Grpo
from pipeline.core.errors import DataError
from pipeline.core.jsonl import write_rows
from pipeline.metrics.own import function
from pipeline.stages.preprocess.stats import row_name, rows_in

INTS = pyarrow.list_(pyarrow.int32())
CHUNK = 1024  # sequences kept as Python lists at a time
GROUP = 1024  # packed rows written at a time


# a sequence to train, a row of `to_table`
SEQUENCE = pyarrow.schema(
    {
        "row_id": pyarrow.string(),
        "input_ids": INTS,
        "labels": INTS,
        "role": pyarrow.int8(),
        "unit": pyarrow.int64(),
        "reward": pyarrow.float64(),
        "trained": pyarrow.int32(),
    }
)
# a row of a Parquet file of packed rows
PACKED = pyarrow.schema(
    {
        "input_ids": INTS,
        "labels": INTS,
        "seq_lengths": INTS,
        "row_ids": pyarrow.list_(pyarrow.string()),
        "roles": pyarrow.list_(pyarrow.int8()),
        "weights": pyarrow.list_(pyarrow.float32()),
    }
)


def sequence(name: str, encoded: Encoded, unit: int, reward: float | None = None) -> dict[str, Any]:
    """Return a sequence to train: its name, ids and labels, the reward of its row (None if missing), and the
    number of its unit. Sequences of one unit share a packed row.
    """
    return {
        "row_id": name,
        "input_ids": encoded.ids,
        "labels": encoded.labels,
        "role": encoded.role,
        "unit": unit,
        "reward": reward,
        "trained": len(trained_positions(encoded)),
    }


def to_table(sequences: Iterable[dict[str, Any]]) -> Any:
    """Return the sequences as one Arrow table, 8 bytes a token."""
    sequences = iter(sequences)
    batches = []
    while chunk := list(islice(sequences, CHUNK)):
        batches.append(pyarrow.RecordBatch.from_pylist(chunk, SEQUENCE))
    return pyarrow.Table.from_batches(batches, SEQUENCE)


def token_lengths(table: Any) -> list[int]:
    """Return the number of tokens of each sequence."""
    return list(pyarrow.compute.list_value_length(table["input_ids"]).to_pylist())


def write_rows_of(path: Path, table: Any, rows: list[list[int]], weights: Any = None) -> None:
    """Write the packed rows, each given by the numbers of its sequences in `table`. `weights` has the factor
    of each sequence's loss (None: 1).
    """
    ones = np.ones(table.num_rows) if weights is None else weights
    weight = pyarrow.array(ones, pyarrow.float32())
    table = table.drop_columns(["unit", "reward", "trained"]).append_column("weight", weight).combine_chunks()
    with parquet.ParquetWriter(path, PACKED) as writer:
        for start in range(0, len(rows), GROUP):
            writer.write_batch(_packed(table, rows[start : start + GROUP]))


def _packed(table: Any, rows: list[list[int]]) -> Any:
    numbers = [number for row in rows for number in row]
    selected = table.take(numbers).combine_chunks()
    lengths = pyarrow.compute.list_value_length(selected["input_ids"]).to_numpy()
    sequences = np.cumsum([0, *map(len, rows)], dtype=np.int32)  # first sequence of each row, as an offset
    sequence_starts = np.concatenate(([0], np.cumsum(lengths)))  # offsets in tokens
    tokens = sequence_starts[sequences].astype(np.int32)  # first token of each row, as an offset
    columns = [
        (tokens, selected["input_ids"].chunk(0).flatten()),
        (tokens, selected["labels"].chunk(0).flatten()),
        (sequences, pyarrow.array(lengths, pyarrow.int32())),
        (sequences, selected["row_id"].chunk(0)),
        (sequences, selected["role"].chunk(0)),
        (sequences, selected["weight"].chunk(0)),
    ]
    arrays = [pyarrow.ListArray.from_arrays(offsets, values) for offsets, values in columns]
    return pyarrow.record_batch(arrays, schema=PACKED)


class Written:
    """A Parquet file read back: every sequence in it, by row id.

    `ids` and `labels` are all tokens in order (int32). `starts` are the offsets of the sequences in them, one
    more than there are sequences. `row_ids`, `roles` and `weights` have one entry a sequence, `lengths` the
    tokens of each packed row. Raises `DataError` if the columns disagree.
    """

    def __init__(self, path: Path) -> None:
        table = parquet.read_table(path).combine_chunks()
        column = {name: table[name].combine_chunks() for name in table.column_names}
        self.lengths = column["input_ids"].value_lengths().to_numpy()
        sizes = column["seq_lengths"].flatten().to_numpy()
        self.ids = column["input_ids"].flatten().to_numpy()
        self.labels = column["labels"].flatten().to_numpy()
        self.starts = np.concatenate(([0], np.cumsum(sizes)))
        self.row_ids: list[str] = column["row_ids"].flatten().to_pylist()
        self.roles = column["roles"].flatten().to_numpy()
        self.weights = column["weights"].flatten().to_numpy()
        self.counts = column["seq_lengths"].value_lengths().to_numpy()  # sequences in each packed row
        owners = column["row_ids"].value_lengths().to_numpy()
        ends = self.starts[np.concatenate(([0], np.cumsum(self.counts)))]
        if (
            len(self.ids) != len(self.labels)
            or not np.array_equal(self.counts, owners)
            or not len(self.roles) == len(self.weights) == len(self.row_ids)
            or not np.array_equal(np.diff(ends), self.lengths)
        ):
            raise DataError(
                "Q-PREPROCESS-013",
                f"{path.name}: its ids, labels, lengths and row ids don't fit each other, so rows would run "
                "into each other",
            )
        self._places: dict[str, list[int]] = {}  # places of each row's sequences, the last one first
        for place in range(len(self.row_ids) - 1, -1, -1):
            self._places.setdefault(self.row_ids[place], []).append(place)

    def take(self, row_id: str) -> tuple[Any, Any] | None:
        """Return (ids, labels) of this row's next sequence and use it up, or None if none is left."""
        places = self._places.get(row_id)
        if not places:
            return None
        place = places.pop()
        part = slice(self.starts[place], self.starts[place + 1])
        return self.ids[part], self.labels[part]

    def role(self, row_id: str) -> int | None:
        """Return the role of the next sequence of this row, or None if none is left."""
        places = self._places.get(row_id)
        return int(self.roles[places[-1]]) if places else None

    def remaining(self) -> Iterator[str]:
        """Yield the row ids of the sequences that were not taken."""
        return (row_id for row_id, places in self._places.items() for _ in places)


def write_questions(target: Path, table: Path, rows: Sequence[Path]) -> None:
    """Write the questions of the sequences in `table` (Parquet), in order. The table was made from `rows`."""
    remaining = deque(Written(table).row_ids)

    def questions() -> Iterator[dict[str, Any]]:
        for number, row in enumerate(rows_in(rows), start=1):
            if remaining and row_name(row, rows[0].name, number) == remaining[0]:
                yield question(remaining.popleft(), row)

    write_rows(target, questions())
    if remaining:
        raise AssertionError(f"{target.name} has not a line for each row of {table.name}")


def copy_rewards(target: Path, settings: Grpo, root: Path) -> None:
    """Copy the reward files below `root`/data/evaluation: those of the functions that `rewards` names, and
    those in the command of `external`. Raises `ConfigError` if a function is missing.
    """
    folder = root / "data/evaluation"
    named = (scorer.removeprefix("python:") for scorer in settings.rewards if scorer.startswith("python:"))
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
