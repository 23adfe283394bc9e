"""Tokens and the join on disk: what counts as a token, in any company, and that records come back grouped by
key whatever the sizes of runs and partitions.
"""

import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.stages.curate.comparing import shingles, spill

ASCII = st.text(st.characters(min_codepoint=9, max_codepoint=126), max_size=60)
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def output(text: str) -> list[str]:
    """The tokens of a text, spelled out."""
    at = [*shingles.tokenize([text]).at.tolist(), len(text)]
    return [text[start:end].strip() for start, end in pairwise(at)]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        (" \t\n", []),
        ("Find all *.txt files", ["Find", "all", "*", ".", "txt", "files"]),
        ("chmod +x a_b", ["chmod", "+", "x", "a_b"]),
        ("don't\u00a0stop", ["don", "'", "t", "stop"]),
        ("Straße, naïve", ["Straße", ",", "naïve"]),
        ("你好,世界。", ["你", "好", ",", "世", "界", "。"]),
        ("こんにちは\u3000世界", ["こ", "ん", "に", "ち", "は", "世", "界"]),
        ("안녕 세계", ["안녕", "세계"]),
        ("สวัสดี", list("สวัสดี")),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("ok 😀!", ["ok", "😀", "!"]),
    ],
)
def test_tokens(text: str, tokens: list[str]) -> None:
    assert output(text) == tokens


def test_hashes_are_the_same_on_every_machine() -> None:
    assert shingles.tokenize(["hello"]).hashes.tolist() == [2163324483675975834]
    assert shingles.ngrams(*shingles.tokenize(["to be or"])[:2], 3)[0].tolist() == [16666358697469833016]


@given(ASCII)
def test_ascii_tokens_are_those_of_a_regular_expression(text: str) -> None:
    assert output(text) == re.findall(r"\w+|[^\w\s]", text)


@given(st.lists(ANY, max_size=8), st.integers(4, 64))
def test_a_text_has_the_same_tokens_in_any_company(texts: list[str], batch: int) -> None:
    with patch.object(shingles, "BATCH", max(batch, max(map(len, texts), default=0) + 2)):
        together = shingles.tokenize(texts)
    assert together.offsets[-1] == len(together.hashes) == len(together.at) == len(together.words)
    before = 0
    for i, text in enumerate(texts):
        alone, own = shingles.tokenize([text]), slice(*together.offsets[i : i + 2])
        assert np.array_equal(alone.hashes, together.hashes[own])
        assert np.array_equal(alone.at + before, together.at[own])
        assert np.array_equal(alone.words, together.words[own])
        before += len(text)


def test_a_text_longer_than_a_batch_is_cut_between_words() -> None:
    text = "some words and, again, words " * 20_000
    once = shingles.tokenize(["some words and, again, words "]).hashes
    assert np.array_equal(shingles.tokenize([text]).hashes, np.tile(once, 20_000))
    # no space to cut at: bounded all the same
    assert len(shingles.tokenize(["x" * 500_000]).hashes) == -(-500_000 // (shingles.BATCH - 1))


KEYS = (
    st.sampled_from([0, 1, 2**63, 2**64 - 1])
    | st.integers(0, 2**64 - 1)
    | st.integers(0, 9).map(lambda i: i * 0x9E3779B97F4A7C15 % 2**64)
)
RECORDS = st.lists(st.lists(st.tuples(KEYS, st.integers(0, 2**32 - 1)), max_size=40), max_size=6)


@given(RECORDS, st.integers(2, 4), st.integers(1, 50), st.integers(1, 50))
def test_groups_are_those_of_a_dictionary(
    blocks: list[list[tuple[int, int]]], least: int, run: int, partition: int
) -> None:
    expected = defaultdict(list)  # the rows of every key in the order added
    for key, row in (record for block in blocks for record in block):
        expected[key].append(row)
    with (
        TemporaryDirectory() as folder,
        patch.object(spill, "RUN", run),
        patch.object(spill, "PARTITION", partition),
    ):
        it = spill.Spill(Path(folder), "records")
        for block in blocks:
            columns = ([key for key, _ in block], np.uint64), ([row for _, row in block], np.uint32)
            it.add(*(np.array(*column) for column in columns))
            assert it.held < run == len(it.keys) == len(it.rows)  # memory holds no more than a run
        it.finish()
        found = defaultdict(list)
        for keys, rows in spill.groups_of([spill.Spill(Path(folder), "records")], least):
            assert (keys[1:] >= keys[:-1]).all() and rows.dtype == np.uint32
            for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
                found[key].append(row)
        assert found == {key: rows for key, rows in expected.items() if len(rows) >= least}


def test_a_partition_is_no_larger_than_asked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with patch.object(spill, "RUN", 1000), patch.object(spill, "PARTITION", 2000):
        it = spill.Spill(tmp_path, "records")
        keys = np.tile(rng.integers(2**64, size=10_000, dtype=np.uint64), 2)
        it.add(keys, np.arange(20_000, dtype=np.uint32))
        read = [len(keys) for keys, _ in spill.groups_of([it.finish()])]
    assert sum(read) == 20_000
    assert max(read) <= 2000
