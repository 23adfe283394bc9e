"""Tokens and n-grams: what counts as one, that hashes mean what they should, and that blocks don't matter."""

import re
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.stages.curate.comparing import shingles as module
from pipeline.stages.curate.comparing.shingles import (
    common,
    filtered,
    is_in,
    ngrams,
    shingles,
    tokenize,
    word_ngrams,
)
from pipeline.stages.curate.comparing.spill import Spill

ASCII = st.text(st.characters(min_codepoint=9, max_codepoint=126), max_size=60)
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def output(text: str) -> list[str]:
    """The tokens of a text, spelled out."""
    at = [*tokenize([text]).at.tolist(), len(text)]
    return [text[start:end].strip() for start, end in pairwise(at)]


HASHES = st.lists(st.integers(0, 9) | st.integers(2**64 - 9, 2**64 - 1), max_size=20)


@given(HASHES, HASHES)
def test_what_is_in_a_sorted_set(asked: list[int], known: list[int]) -> None:
    found = is_in(np.array(asked, np.uint64), np.unique(np.array(known, np.uint64)))
    assert found.dtype == np.bool_
    assert found.tolist() == [each in known for each in asked]


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


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Find  ALL\nfiles", "find all files", True),
        ("ÄRGER", "ärger", True),
        ("chmod +x", "chmod -x", False),
        ("ab", "ba", False),
        ("a b", "ab", False),
        ("世界", "界世", False),
    ],
)
def test_same_tokens(one: str, other: str, same: bool) -> None:
    assert np.array_equal(tokenize([one]).hashes, tokenize([other]).hashes) == same


def test_hashes_are_the_same_on_every_machine() -> None:
    assert tokenize(["hello"]).hashes.tolist() == [2163324483675975834]
    assert ngrams(*tokenize(["to be or"])[:2], 3)[0].tolist() == [16666358697469833016]


@given(ASCII)
def test_ascii_tokens_are_those_of_a_regular_expression(text: str) -> None:
    assert output(text) == re.findall(r"\w+|[^\w\s]", text)


@given(st.lists(ANY, max_size=8), st.integers(4, 64))
def test_a_text_has_the_same_tokens_in_any_company(texts: list[str], batch: int) -> None:
    with patch.object(module, "BATCH", max(batch, max(map(len, texts), default=0) + 2)):
        together = tokenize(texts)
    assert together.offsets[-1] == len(together.hashes) == len(together.at) == len(together.words)
    before = 0
    for i, text in enumerate(texts):
        alone, own = tokenize([text]), slice(*together.offsets[i : i + 2])
        assert np.array_equal(alone.hashes, together.hashes[own])
        assert np.array_equal(alone.at + before, together.at[own])
        assert np.array_equal(alone.words, together.words[own])
        before += len(text)


def test_a_text_longer_than_a_batch_is_cut_between_words() -> None:
    text = "some words and, again, words " * 20_000
    once = tokenize(["some words and, again, words "]).hashes
    assert np.array_equal(tokenize([text]).hashes, np.tile(once, 20_000))
    # no space to cut at: bounded all the same
    assert len(tokenize(["x" * 500_000]).hashes) == -(-500_000 // (module.BATCH - 1))


@given(st.lists(st.text("ab ", max_size=14), max_size=5), st.integers(1, 4))
def test_ngrams_are_equal_where_their_tokens_are(texts: list[str], n: int) -> None:
    tokens = tokenize(texts)
    grams, offsets = ngrams(tokens.hashes, tokens.offsets, n)
    spelled = [tuple(words[i : i + n]) for words in map(str.split, texts) for i in range(len(words) - n + 1)]
    assert np.diff(offsets).tolist() == [max(len(text.split()) - n + 1, 0) for text in texts]
    assert len(grams) == len(spelled)
    assert (
        len(set(grams.tolist())) == len(set(spelled)) == len(set(zip(grams.tolist(), spelled, strict=True)))
    )


def test_short_documents_have_one_shingle() -> None:
    tokens = tokenize(["a", "", "a b c d", "a b", "a"])
    grams, offsets = shingles(tokens.hashes, tokens.offsets, 3)
    assert np.diff(offsets).tolist() == [1, 0, 2, 1, 1]
    assert grams[0] == grams[-1] != grams[-2]
    assert np.array_equal(grams[1:3], ngrams(tokens.hashes, tokens.offsets, 3)[0])


def test_words_are_counted_without_what_is_between_them() -> None:
    assert np.array_equal(
        word_ngrams(tokenize(["It's: one, two"]), 4)[0], word_ngrams(tokenize(["it s one (two)!"]), 4)[0]
    )
    assert len(word_ngrams(tokenize(["10 + 8 = <<10+8=18>>18"]), 13)[0]) == 0


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.booleans())), st.data())
def test_filtered_documents_keep_their_own(items: list[tuple[int, bool]], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(items)), max_size=4)))
    offsets = np.array([0, *cuts, len(items)])
    kept, begins = filtered(
        np.array([key for key, _ in items], np.uint64),
        offsets,
        np.array([keep for _, keep in items], np.bool_),
    )
    for i in range(len(offsets) - 1):
        assert kept[begins[i] : begins[i + 1]].tolist() == [
            key for key, keep in items[offsets[i] : offsets[i + 1]] if keep
        ]


def test_common_counts_rows_not_occurrences(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    spill.add(
        np.array([1, 1, 1, 2, 2, 2, 3], np.uint64) << np.uint64(60),
        np.array([0, 0, 0, 0, 1, 2, 0], np.uint32),
    )
    assert common(spill, 3).tolist() == [2 << 60]
