"""Tokenized rows as Arrow tables and Parquet files: one packed row a line, which knows the sequences that are
in it.

Columns: `input_ids`, `labels` (int32, of all its sequences, one after the other), `seq_lengths` (the trainer
restarts
positions there), `row_ids` (the row of data/final that each sequence is of; `ID#2` is the second turn of an
unfolded one).
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
from pyarrow import parquet

from pipeline.chat.tokens import Encoded
from pipeline.core.errors import DataError

INTS = pyarrow.list_(pyarrow.int32())
CHUNK = 1024  # sequences that are held as Python lists at a time
GROUP = 1024  # packed rows that are written at a time


def to_table(sequences: Iterable[tuple[str, Encoded]]) -> Any:
    """The sequences (row id, ids and labels) as one Arrow table: 8 bytes a token."""
    schema = pyarrow.schema({"row_id": pyarrow.string(), "input_ids": INTS, "labels": INTS})
    sequences = iter(sequences)
    batches = []
    while some := list(islice(sequences, CHUNK)):
        rows = [{"row_id": name, "input_ids": one.ids, "labels": one.labels} for name, one in some]
        batches.append(pyarrow.RecordBatch.from_pylist(rows, schema))
    return pyarrow.Table.from_batches(batches, schema)


def token_lengths(table: Any) -> list[int]:
    """The number of tokens of each sequence."""
    return list(pyarrow.compute.list_value_length(table["input_ids"]).to_pylist())


def write_rows_of(path: Path, table: Any, rows: list[list[int]]) -> None:
    """Write the packed rows, each given by the numbers of its sequences in `table`."""
    schema = pyarrow.schema(
        {"input_ids": INTS, "labels": INTS, "seq_lengths": INTS, "row_ids": pyarrow.list_(pyarrow.string())}
    )
    table = table.combine_chunks()
    with parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, len(rows), GROUP):
            writer.write_batch(_packed(table, rows[start : start + GROUP], schema))


def _packed(table: Any, rows: list[list[int]], schema: Any) -> Any:
    taken = table.take([number for row in rows for number in row]).combine_chunks()
    lengths = pyarrow.compute.list_value_length(taken["input_ids"]).to_numpy()
    sequences = np.cumsum([0, *map(len, rows)], dtype=np.int32)  # where the rows begin, in sequences
    tokens = np.concatenate(([0], np.cumsum(lengths)))[sequences].astype(np.int32)  # and in tokens
    flat = [(tokens, taken[name].chunk(0).flatten()) for name in ("input_ids", "labels")]
    flat += [(sequences, pyarrow.array(lengths, pyarrow.int32())), (sequences, taken["row_id"].chunk(0))]
    return pyarrow.record_batch(
        [pyarrow.ListArray.from_arrays(offsets, values) for offsets, values in flat], schema=schema
    )


class Written:
    """A Parquet file read back: every sequence in it, by row id.

    `ids` and `labels` are all tokens in order (int32), `starts` where the sequences begin in them (one more
    than there are sequences), `row_ids` the sequences' rows, `lengths` the tokens of each packed row. Raises
    `DataError` if the columns disagree.
    """

    def __init__(self, path: Path) -> None:
        table = parquet.read_table(path).combine_chunks()
        column = {name: table[name].combine_chunks() for name in table.column_names}
        self.lengths = column["input_ids"].value_lengths().to_numpy()
        sizes = column["seq_lengths"].flatten().to_numpy()
        self.ids, self.labels = (column[name].flatten().to_numpy() for name in ("input_ids", "labels"))
        self.starts = np.concatenate(([0], np.cumsum(sizes)))
        self.row_ids: list[str] = column["row_ids"].flatten().to_pylist()
        counts, owners = (column[name].value_lengths().to_numpy() for name in ("seq_lengths", "row_ids"))
        ends = self.starts[np.concatenate(([0], np.cumsum(counts)))]
        if (
            len(self.ids) != len(self.labels)
            or not np.array_equal(counts, owners)
            or not np.array_equal(np.diff(ends), self.lengths)
        ):
            raise DataError(
                "Q-PREPROCESS-013",
                f"{path.name}: its ids, labels, lengths and row ids don't fit each other, so rows would run "
                "into each other",
            )
        self._places: dict[str, list[int]] = {}  # of each row the last sequence first
        for place in range(len(self.row_ids) - 1, -1, -1):
            self._places.setdefault(self.row_ids[place], []).append(place)

    def take(self, row_id: str) -> tuple[Any, Any] | None:
        """(ids, labels) of the next sequence of this row, which is then used up; None if there is none
        (left).
        """
        places = self._places.get(row_id)
        if not places:
            return None
        place = places.pop()
        part = slice(self.starts[place], self.starts[place + 1])
        return self.ids[part], self.labels[part]

    def left(self) -> Iterator[str]:
        """The row ids of the sequences that were not taken."""
        return (row_id for row_id, places in self._places.items() for _ in places)
