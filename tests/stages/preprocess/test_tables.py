"""tables: what is written comes back, sequence by sequence, under its row's name."""

from itertools import pairwise
from pathlib import Path

import pytest
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.chat.tokens import Encoded
from pipeline.core.errors import DataError
from pipeline.stages.preprocess.tables import Written, sequence, to_table, write_rows_of

SEQUENCES = [
    sequence("a", Encoded([1, 2, 3], [-100, 2, 3]), 0),
    sequence("b#1", Encoded([4], [4]), 1),
    sequence("b#2", Encoded([5, 6], [-100, 6]), 2),
    sequence("a", Encoded([7, 8], [7, 8]), 3),
]


@settings(max_examples=draws(30))
@given(lengths=st.lists(st.integers(1, 9), max_size=40), data=st.data())
def test_there_and_back(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], data: st.DataObject
) -> None:
    sequences = [
        sequence(f"row{number}", Encoded([number] * length, [-100] * length), number)
        for number, length in enumerate(lengths)
    ]
    order = data.draw(st.permutations(range(len(lengths))))
    inside = data.draw(st.sets(st.integers(1, max(1, len(lengths) - 1))))
    cuts = sorted({0, *inside, len(lengths)} if lengths else {0})
    rows = [list(order[start:end]) for start, end in pairwise(cuts) if order[start:end]]
    table = to_table(iter(sequences))
    path = tmp_path_factory.mktemp("one") / "x.parquet"
    write_rows_of(path, table, rows)
    written = Written(path)
    assert written.row_ids == [f"row{number}" for row in rows for number in row]
    assert written.lengths.tolist() == [sum(lengths[number] for number in row) for row in rows]
    for one in sequences:
        ids, labels = written.take(one["row_id"]) or ([], [])
        assert (list(ids), list(labels)) == (one["input_ids"], one["labels"])
    assert list(written.remaining()) == []


def test_rows_of_one_name_are_taken_one_by_one(tmp_path: Path) -> None:
    write_rows_of(tmp_path / "x.parquet", to_table(SEQUENCES), [[0, 2], [1, 3]])
    written = Written(tmp_path / "x.parquet")
    taken = [written.take("a"), written.take("a")]
    assert [one[0].tolist() for one in taken if one] == [[1, 2, 3], [7, 8]]
    assert written.take("a") is None
    assert sorted(written.remaining()) == ["b#1", "b#2"]


def test_the_columns_are_those_that_train_reads(tmp_path: Path) -> None:
    from pyarrow import parquet

    write_rows_of(tmp_path / "x.parquet", to_table(SEQUENCES), [[0, 2], [1], [3]])
    assert parquet.read_table(tmp_path / "x.parquet").to_pylist()[0] == {
        "input_ids": [1, 2, 3, 5, 6],
        "labels": [-100, 2, 3, -100, 6],
        "seq_lengths": [3, 2],
        "row_ids": ["a", "b#2"],
        "roles": [0, 0],
        "weights": [1.0, 1.0],
    }


@pytest.mark.parametrize("column", ["labels", "seq_lengths", "row_ids", "roles", "weights"])
def test_columns_that_disagree_are_refused(column: str, tmp_path: Path) -> None:
    from pyarrow import array, parquet

    path = tmp_path / "x.parquet"
    write_rows_of(path, to_table(SEQUENCES), [[0, 2], [1, 3]])
    table = parquet.read_table(path)
    place = table.schema.get_field_index(column)
    shorter = array([values[:-1] for values in table[column].to_pylist()], table.schema.field(place).type)
    parquet.write_table(table.set_column(place, column, shorter), path)
    with pytest.raises(DataError, match="Q-PREPROCESS-013"):
        Written(path)
