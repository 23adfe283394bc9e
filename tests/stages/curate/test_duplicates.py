"""Clusters of duplicates and groups of one request: found, the same in any order, and never a whole
template.
"""

import importlib.util
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from canonical import ROWS
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline.stages.curate.comparing.features
from pipeline.core.places import PROJECT
from pipeline.stages.curate.comparing.duplicates import Clusters, best_of, first_rows, joined
from pipeline.stages.curate.comparing.duplicates import clusters as product
from pipeline.stages.curate.comparing.features import (
    COMMON_ROWS,
    FOUND,
    OWN,
    PERMUTATIONS,
    Boilerplate,
    bands_for,
    boilerplate,
    features,
    signatures,
    similarity,
    sketch,
)
from pipeline.stages.curate.comparing.row_parts import content_key, parts, quality, worth
from pipeline.stages.curate.comparing.shingles import shingles, tokenize
from pipeline.stages.curate.comparing.sketched import Sketched, Sketches, labels, unite
from pipeline.stages.curate.comparing.spill import Spill

NOTHING = np.zeros(0, np.uint64)
PLAIN = Boilerplate(NOTHING, NOTHING, NOTHING, NOTHING)
WORDS = [
    f"{a}{b}{c}"
    for a in ("ka", "lo", "mi", "ru")
    for b in ("ta", "ne", "so", "vi")
    for c in ("n", "x", "la", "do", "")
]
EDGES = st.integers(2, 12).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=8), max_size=4),
    )
)


def load_chats() -> Any:
    """The generator of the benchmarks."""
    spec = importlib.util.spec_from_file_location("chats", PROJECT / "benchmarks/chats.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sentence(seed: int, words: int = 60) -> str:
    """Some words with nothing in common with those of another seed."""
    dice = random.Random(seed)  # noqa: S311
    return " ".join(
        dice.choice(WORDS) + str(seed) if dice.random() < 0.3 else dice.choice(WORDS) for _ in range(words)
    )


def chat(
    *turns: str, system: str | None = None, kind: str = "chat", source: str = "a.jsonl:1", **more: Any
) -> dict[str, Any]:
    """A row of turns that begin with the user's."""
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(turns)]
    return {"id": "0" * 16, "source": source, "kind": kind, "domain": "a", "messages": messages, **more}


def clusters(
    rows: Sequence[dict[str, Any]], threshold: float = 0.7, block: int = 64, look: bool = False
) -> Clusters:
    """The product's answer, for rows in blocks of any size; `look`: after looking for boilerplate."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        common = boilerplate(rows, folder, ngram=13) if look else PLAIN
        exact = Spill(folder)
        exact.add(np.array(list(map(content_key, rows)), np.uint64), np.arange(len(rows), dtype=np.uint32))
        first = first_rows(exact, len(rows))
        sketches = Sketches(folder, 0)
        for at in range(0, len(rows), block):
            sketches.add(features(rows[at : at + block], common, threshold=threshold, ngram=13))
        sketches.finish()
        sketched = Sketched([folder], [0, len(rows)])
        edges = joined(sketched, first, threshold, range(256))
        return product(sketched, first, edges, threshold)


def sets(label: np.ndarray) -> set[frozenset[int]]:
    """The rows of every label."""
    return {frozenset(np.flatnonzero(label == one).tolist()) for one in np.unique(label).tolist()}


ASKED, OUTPUTS = sentence(1, 30), sentence(2)


@pytest.mark.parametrize(
    ("other", "exact", "near", "grouped"),
    [
        (chat(ASKED, OUTPUTS), True, True, True),
        (chat(ASKED.upper(), f"  {OUTPUTS}\n"), True, True, True),
        (chat(ASKED, OUTPUTS, system="Be brief."), False, True, True),
        (chat(ASKED, OUTPUTS, system=sentence(7, 200)), False, True, True),
        (chat(ASKED, OUTPUTS + " And so on."), False, True, True),
        (chat("Hello! " + ASKED, OUTPUTS), False, True, True),
        (chat(ASKED, OUTPUTS.replace(OUTPUTS.split()[20], "other")), False, True, True),
        (chat(ASKED, sentence(3)), False, False, True),
        (chat(ASKED + " please", sentence(3)), False, False, True),
        (chat(sentence(4, 10), OUTPUTS), False, True, True),  # 60 of 90 words
        (chat(sentence(4), sentence(5)), False, False, False),
        (chat(ASKED, OUTPUTS, kind="feedback", label=False), False, False, True),
        (chat(ASKED, kind="prompt", answer=sentence(3)), False, False, True),
        (
            {
                **chat(ASKED, kind="preference"),
                "chosen": [{"role": "assistant", "content": OUTPUTS}],
                "rejected": [{"role": "assistant", "content": "no"}],
            },
            False,
            False,
            True,
        ),
        (chat(sentence(6), source="a.jsonl:7#2"), False, False, False),
    ],
)
def test_what_is_a_duplicate_and_what_a_relative(
    other: dict[str, Any], exact: bool, near: bool, grouped: bool
) -> None:
    found = clusters([chat(ASKED, OUTPUTS), other], 0.5)
    assert (found.exact.tolist(), len(sets(found.cluster)) == 1, len(sets(found.group)) == 1) == (
        [False, exact],
        near,
        grouped,
    )
    assert found.keep.sum() == (1 if near else 2)


def test_relatives_need_not_be_duplicates() -> None:
    """Rows that are alike, but less than the threshold for dropping them, stay on one side of the split."""
    rows = [chat(sentence(8, 9), OUTPUTS), chat(sentence(9, 9), OUTPUTS)]
    assert (clusters(rows, 0.6).cluster.tolist(), clusters(rows, 0.9).cluster.tolist()) == ([0, 0], [0, 1])
    assert clusters(rows, 0.9).group.tolist() == [0, 0]


def test_two_thumbs_are_two_rows() -> None:
    """The same conversation with a thumb up and one with a thumb down."""
    found = clusters([chat(ASKED, OUTPUTS, kind="feedback", label=label) for label in (True, False, True)])
    assert found.cluster.tolist() == [0, 1, 0]
    assert sets(found.group) == {frozenset({0, 1, 2})}


def test_parts_of_one_conversation_stay_together() -> None:
    rows = [
        chat(sentence(i), sentence(i + 10), source=source)
        for i, source in enumerate(
            [
                "a.jsonl:3#1",
                "a.jsonl:4#1",
                "a.jsonl:3#2",
                "b.jsonl:3#2",
                "a:3#1.jsonl:5",
                "a:3#1.jsonl:6",
                "a:3#1.jsonl:7#1",
            ]
        )
    ]
    assert clusters(rows).group.tolist() == [0, 1, 0, 3, 4, 5, 6]


def test_long_rows_are_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes: list[int] = []
    read = pipeline.stages.curate.comparing.features._read

    def counted(rows: Sequence[dict[str, Any]]) -> Any:
        sizes.append(len(rows))
        return read(rows)

    monkeypatch.setattr("pipeline.stages.curate.comparing.features._read", counted)
    boilerplate(
        [chat(ASKED, OUTPUTS)] * 600 + [chat("word " * 150_000, OUTPUTS)] * 3 + [chat(ASKED, OUTPUTS)],
        tmp_path,
        ngram=13,
    )
    assert sizes == [256, 256, 88 + 1, 1, 1 + 1]


def test_the_request_is_what_the_user_says_before_the_last_answer() -> None:
    row = chat("one", "two", "three", "four", "thanks", system="Be kind.")
    assert [(part.place, part.text) for part in parts(row) if part.asked] == [
        ("messages 2", "one"),
        ("messages 4", "three"),
    ]
    assert [
        part.text for part in parts(chat("one", "two", "three", kind="prompt", answer="4")) if part.asked
    ] == ["one", "three"]


def test_the_best_row_of_a_cluster_is_kept() -> None:
    rows = [
        chat(ASKED, OUTPUTS),
        *(chat(ASKED, f"{who} says {OUTPUTS}") for who in ("[EMAIL_1]", "Everybody", "everybody")),
    ]
    found = clusters(rows)
    assert found.cluster.tolist() == [0, 0, 0, 0]
    assert found.keep.tolist() == [False, False, True, False]  # the longest answer, the first of two
    assert found.similarity[2:].tolist() == [1, 1]
    assert 0.7 <= found.similarity[0] < 1
    assert quality(chat("", "write to [EMAIL_1] now")) < quality(chat("", "write to somebody, now"))
    assert quality(chat("", "x" * 9)) == quality(
        {"messages": [*chat("", "x" * 9)["messages"], {"role": "assistant", "content": "y", "train": False}]}
    )


def test_of_rows_with_rewards_the_best_rewarded_is_kept() -> None:
    long = f"Everybody says {OUTPUTS}"
    scored = [chat(ASKED, long, reward=-2.0), chat(ASKED, OUTPUTS, reward=-1.5), chat(ASKED, long)]
    assert clusters(scored).keep.tolist() == [False, True, False]  # what has no reward comes last
    equal = [chat(ASKED, OUTPUTS, reward=0.0), chat(ASKED, long, reward=-0.0)]
    assert clusters(equal).keep.tolist() == [False, True]  # the longest answer


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=2, max_size=8))
def test_worth_has_the_order_of_rewards(rewards: list[float]) -> None:
    row = chat(ASKED, OUTPUTS)
    found = {reward: worth(row | {"reward": reward}) for reward in rewards}
    assert sorted(found, key=lambda reward: found[reward]) == sorted(found)
    assert worth(row) == quality(row) < min(found.values())
    assert worth(row | {"reward": 1e300}) > max(found.values()) <= 2**64 - 1


def test_planted_duplicates_are_found() -> None:
    generator = load_chats()
    rows, truth = [], []
    for cluster, turns in generator.chats(1500, seed=3):
        truth.append(cluster)
        rows.append(chat(*turns))
    found = clusters(rows, 0.7, look=True)
    assert generator.pairwise_f1(np.array(truth), found.cluster) > 0.95
    assert 0.15 < 1 - found.keep.mean() < 0.25


def template(rows: int) -> list[dict[str, Any]]:
    """Rows of one long template that differ in a word or two, and three copies of one of them with another
    end.
    """
    instruction = sentence(99, 80)
    made = [
        chat(
            f"{instruction}\n\nName: {sentence(i, 6)}",
            f'{{"name": "{sentence(i, 4)}", "kind": "function", "public": true}}',
        )
        for i in range(rows)
    ]
    return [
        *made,
        *(
            chat(made[0]["messages"][0]["content"], made[0]["messages"][1]["content"] + end)
            for end in (" .", " !", " ?")
        ),
    ]


def test_a_template_is_not_one_cluster() -> None:
    rows = template(300)
    found = clusters(rows, 0.7, look=True)
    assert sets(found.cluster) == {frozenset({0, 300, 301, 302}), *(frozenset({i}) for i in range(1, 300))}
    assert sets(found.group) == sets(found.cluster)
    # what it would be without looking for boilerplate
    assert max(map(len, sets(clusters(rows, 0.7).cluster))) > 250


def unrelated(rows: int) -> list[dict[str, Any]]:
    """Rows with nothing in common."""
    return [chat(sentence(i, 20), sentence(i + 5000, 30)) for i in range(1000, 1000 + rows)]


@pytest.mark.parametrize(
    ("family", "kept", "groups"),
    [
        ([chat(ASKED, f"{OUTPUTS} item{i}x") for i in range(30)], 1, 1),
        ([chat(f"{ASKED} nr{i}z", OUTPUTS) for i in range(30)], 1, 1),
        ([chat(f"Nr{i}z: {ASKED}", f"{OUTPUTS} item{i}x") for i in range(30)], 1, 1),
        ([chat(ASKED, f"{OUTPUTS} item{i}x") for i in range(30)] + [chat(ASKED, OUTPUTS)] * 5, 1, 1),
        ([chat(ASKED, sentence(i)) for i in range(30)], 30, 1),
        ([chat("Write a story.", sentence(i)) for i in range(30)], 30, 30),
        ([chat(f"{sentence(9, 300)} {sentence(i, 15)}", sentence(i + 50, 5)) for i in range(30)], 30, 30),
    ],
    ids=["answer", "request", "both", "with copies", "one request", "one short request", "template"],
)
def test_a_family_of_a_tenth_of_the_rows(family: list[dict[str, Any]], kept: int, groups: int) -> None:
    """What so many rows share is boilerplate, but they are near-duplicates of each other all the same."""
    found = clusters([*unrelated(270), *family], 0.8, look=True)
    assert (found.keep[270:].sum(), len(set(found.group[270:].tolist()))) == (kept, groups)
    assert found.keep[:270].all()
    assert len(set(found.group[:270].tolist())) == 270


def test_a_family_inside_a_template() -> None:
    """Every row has the instruction; what a tenth of the rows has besides is theirs, not the template's."""
    instruction = sentence(99, 80)
    rows = [chat(f"{instruction} {sentence(i, 6)}", sentence(i + 500, 4)) for i in range(270)]
    rows += [chat(f"{instruction} {ASKED}", f"{OUTPUTS} item{i}x") for i in range(30)]
    found = clusters(rows, 0.8, look=True)
    assert sets(found.cluster) == {frozenset({i}) for i in range(270)} | {frozenset(range(270, 300))}


def plain_shingles(row: dict[str, Any]) -> set[tuple[str, ...]]:
    words = " ".join(turn["content"] for turn in row["messages"]).split()
    return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}


def test_who_is_alike_is_on_one_side_but_for_templates() -> None:
    """Against all pairs: those over the threshold are in one group, or each of the two has `OWN` shingles or
    more of its own.
    """
    rows = unrelated(150)
    rows += [chat(sentence(1, 30), f"{sentence(2, 40)} {sentence(i, i % 9)}") for i in range(40)]
    rows += [chat(f"{sentence(3, 120)} {sentence(i, 8)}", sentence(i + 100, 2)) for i in range(40)]
    rows += [chat(f"{sentence(i, 25)} {sentence(i + 1, 2)}", sentence(i // 4, 40)) for i in range(200, 240)]
    grams = [plain_shingles(row) for row in rows]
    often = Counter(gram for own in grams for gram in own)
    own = [sum(often[gram] < COMMON_ROWS for gram in each) for each in grams]
    group = clusters(rows, 0.8, look=True).group.tolist()
    apart, together = 0, 0
    for a, b in combinations(range(len(rows)), 2):
        if len(grams[a] & grams[b]) >= 0.8 * len(grams[a] | grams[b]):
            apart += group[a] != group[b]
            together += group[a] == group[b]
            assert group[a] == group[b] or max(own[a], own[b]) >= OWN
    assert apart > 500
    assert together > 200


def test_a_request_that_everybody_makes_groups_nobody() -> None:
    for request in ("Write a story.", ASKED):
        rows = [chat(request, sentence(i)) for i in range(100)]
        assert len(sets(clusters(rows, look=True).group)) == 100
    assert len(sets(clusters(rows[:10], look=True).group)) == 1


def test_a_request_made_of_boilerplate_is_still_a_request() -> None:
    common = sentence(5, 20)
    rows = [chat(f"{common} {sentence(i, 3)}", sentence(i)) for i in range(100, 140)] + [
        chat(common, sentence(i)) for i in (1, 2)
    ]
    assert {len(members) for members in sets(clusters(rows, look=True).group)} == {1, 2}


@settings(max_examples=draws(15))
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_neither_the_order_nor_the_blocks_matter(seed: int, block: int) -> None:
    dice = random.Random(seed)  # noqa: S311
    bases = [[sentence(dice.randrange(10**6), 20), sentence(dice.randrange(10**6), 40)] for _ in range(12)]
    rows = [
        chat(
            asked,
            output + (" end" * dice.randrange(12))
            if dice.random() < 0.5
            else sentence(dice.randrange(10**6)),
        )
        for asked, output in bases * 3
    ]
    order = dice.sample(range(len(rows)), len(rows))
    straight, shuffled = clusters(rows), clusters([rows[i] for i in order], block=block)
    for one, other in (
        (straight.cluster, shuffled.cluster),
        (straight.group, shuffled.group),
        (straight.first, shuffled.first),
    ):
        assert sets(one) == {frozenset(order[i] for i in members) for members in sets(other)}
    for found in (straight, shuffled):
        assert found.cluster.tolist() == [
            min(next(members for members in sets(found.cluster) if i in members)) for i in range(len(rows))
        ]
        assert found.keep.sum() == len(sets(found.cluster))
        assert not found.exact[found.keep].any() or (found.similarity[found.exact] > 0).all()


@settings(max_examples=draws(60))
@given(st.lists(ROWS, max_size=8), st.integers(1, 8))
def test_any_canonical_row_has_features(rows: list[dict[str, Any]], block: int) -> None:
    found, split = clusters(rows), clusters(rows, block=block)
    assert found.cluster.tolist() == split.cluster.tolist()
    assert found.group.tolist() == split.group.tolist()
    for a in range(len(rows)):
        for b in range(a):
            if rows[a] == rows[b]:
                assert found.first[a] == found.first[b]


@given(EDGES)
def test_united_sets_are_those_of_a_search(case: tuple[int, list[list[tuple[int, int]]]]) -> None:
    count, batches = case
    parent = np.arange(count, dtype=np.int32)
    reach = {i: {i} for i in range(count)}
    for batch in batches:
        unite(parent, np.array([a for a, _ in batch], np.int32), np.array([b for _, b in batch], np.int32))
        for a, b in batch:
            joined = reach[a] | reach[b]
            for i in joined:
                reach[i] = joined
    assert labels(parent).tolist() == [min(reach[i]) for i in range(count)]


def test_a_long_chain_is_united_quickly() -> None:
    parent = np.arange(200_000, dtype=np.int32)
    unite(parent, parent[:-1].copy(), parent[1:].copy())
    assert not labels(parent).any()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=30))
def test_the_best_of_each_cluster(rows: list[tuple[int, int]]) -> None:
    firsts = [next(i for i, (other, _) in enumerate(rows) if other == label) for label, _ in rows]
    best = best_of(np.array(firsts, np.int32), np.array([score for _, score in rows], np.uint32)).tolist()
    for i, first in enumerate(firsts):
        members = [j for j, other in enumerate(firsts) if other == first]
        assert best[i] == max(members, key=lambda j: (rows[j][1], -j))


def test_signatures_are_read_a_page_at_a_time(tmp_path: Path) -> None:
    """Of two shards of 300 and 700 rows."""
    rng = np.random.default_rng(0)
    written = rng.integers(256, size=(1000, PERMUTATIONS), dtype=np.uint8)
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, some in zip(folders, np.split(written, [300]), strict=True):
        folder.mkdir()
        (folder / "entire.column").write_bytes(some.tobytes())
    sketched = Sketched(folders, [0, 300, 1000])
    rows = rng.integers(1000, size=500).astype(np.int32)
    with patch("os.pread", wraps=os.pread) as read:
        assert (sketched.signatures("entire", rows) == written[rows]).all()
    assert read.call_count == 2 + 3
    assert sketched.signatures("entire", rows[:0]).shape == (0, PERMUTATIONS)


def jaccards() -> Iterator[tuple[str, str]]:
    """Pairs of texts of all degrees of similarity, short and long."""
    for i in range(400):
        words = sentence(i, 20 + i % 150).split()
        cut = len(words) * (i % 10) // 30
        yield " ".join(words), " ".join(words[cut:] + sentence(i + 1000, cut).split())


def test_similarity_is_estimated_without_bias() -> None:
    tokens = tokenize([text for pair in jaccards() for text in pair])
    grams, offsets = shingles(tokens.hashes, tokens.offsets, 3)
    members = [set(grams[a:b].tolist()) for a, b in pairwise(offsets.tolist())]
    exact = np.array([len(a & b) / len(a | b) for a, b in zip(members[::2], members[1::2], strict=True)])
    low = sketch(signatures(grams, offsets), offsets, np.zeros(800, np.uint64), (25, 5)).signatures
    error = similarity(low[::2], low[1::2]) - exact
    assert abs(error.mean()) < 0.01
    assert np.sqrt((error**2).mean()) < np.sqrt(0.25 / PERMUTATIONS)  # no more than that of 128 coin tosses


@pytest.mark.parametrize("threshold", [0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
def test_bands_find_what_is_at_the_threshold(threshold: float) -> None:
    count, width = bands_for(threshold)
    assert count * width <= PERMUTATIONS
    assert 1 - (1 - threshold**width) ** count >= FOUND


def test_a_chain_is_cut_where_rows_are_no_longer_alike_the_kept_one() -> None:
    words = [f"w{i}" for i in range(400)]
    # neighbors are alike, the ends share nothing
    rows = [chat("ask", " ".join(words[i * 6 : i * 6 + 100])) for i in range(40)]
    found = clusters(rows, threshold=0.8)
    assert (found.similarity >= 0.8).all()
    assert len(sets(found.group)) == 1  # related all the same: on one side of the split
    kept = np.flatnonzero(found.keep)
    assert 5 < len(kept) < 40
    assert {int(found.cluster[i]) for i in kept} == set(found.cluster.tolist())
    assert (found.cluster <= np.arange(40)).all() and (found.cluster[found.cluster] == found.cluster).all()
