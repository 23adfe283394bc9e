"""Records on disk come back grouped by key, whatever the sizes of runs and partitions."""

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.stages.curate.comparing import spill
from pipeline.stages.curate.comparing.spill import Spill, sizes, starts

KEYS = (
    st.sampled_from([0, 1, 2**63, 2**64 - 1])
    | st.integers(0, 2**64 - 1)
    | st.integers(0, 9).map(lambda i: i * 0x9E3779B97F4A7C15 % 2**64)
)
RECORDS = st.lists(st.lists(st.tuples(KEYS, st.integers(0, 2**32 - 1)), max_size=40), max_size=6)


def grouped(records: list[tuple[int, int]], least: int) -> dict[int, list[int]]:
    """The rows of every key that occurs often enough, in the order added."""
    found = defaultdict(list)
    for key, row in records:
        found[key].append(row)
    return {key: rows for key, rows in found.items() if len(rows) >= least}


@given(RECORDS, st.integers(2, 4), st.integers(1, 50), st.integers(1, 50))
def test_groups_are_those_of_a_dictionary(
    blocks: list[list[tuple[int, int]]], least: int, run: int, partition: int
) -> None:
    with (
        TemporaryDirectory() as folder,
        patch.object(spill, "RUN", run),
        patch.object(spill, "PARTITION", partition),
    ):
        it = Spill(Path(folder))
        for block in blocks:
            it.add(
                np.array([key for key, _ in block], np.uint64), np.array([row for _, row in block], np.uint32)
            )
        for _ in range(2):  # it can be read again
            found: list[tuple[int, int]] = []
            for keys, rows in it.groups(least):
                assert (keys[1:] >= keys[:-1]).all()
                found += zip(keys.tolist(), rows.tolist(), strict=True)
            assert grouped(found, 1) == grouped([record for block in blocks for record in block], least)


def test_a_partition_is_no_larger_than_asked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with patch.object(spill, "RUN", 1000), patch.object(spill, "PARTITION", 2000):
        it = Spill(tmp_path)
        keys = np.tile(rng.integers(2**64, size=10_000, dtype=np.uint64), 2)
        it.add(keys, np.arange(20_000, dtype=np.uint32))
        read = [len(keys) for keys, _ in it.groups()]
    assert sum(read) == 20_000
    assert max(read) <= 2000


def test_memory_holds_no_more_than_a_run(tmp_path: Path) -> None:
    with patch.object(spill, "RUN", 100):
        it = Spill(tmp_path)
        for count in (0, 30, 250, 0, 90):
            it.add(np.arange(count, dtype=np.uint64), np.arange(count))  # 64-bit rows as well
        assert (it.held, it.written) == (70, 300)
        assert [len(it.keys), len(it.rows)] == [100, 100]
        assert np.diff([*(run[0] for run in it.runs), it.written]).tolist() == [100, 100, 100]
        found = [(keys, rows) for keys, rows in it.groups(3)]
    assert [rows.tolist() for _, rows in found] == [np.repeat(np.arange(30), 3).tolist()]
    assert [rows.dtype for _, rows in found] == [np.uint32]


def test_no_file_is_left(tmp_path: Path) -> None:
    it = Spill(tmp_path)
    it.add(np.ones(3, np.uint64), np.arange(3, dtype=np.uint32))
    assert [rows.tolist() for _, rows in it.groups()] == [[0, 1, 2]]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("keys", "begins", "counts"),
    [
        ([], [], []),
        ([5], [0], [1]),
        ([1, 1, 2, 1, 1, 1], [0, 2, 3], [2, 2, 1, 3, 3, 3]),
    ],
)
def test_groups_of_equal_neighbors(keys: list[int], begins: list[int], counts: list[int]) -> None:
    assert starts(np.array(keys)).tolist() == begins
    assert sizes(np.array(keys)).tolist() == counts
