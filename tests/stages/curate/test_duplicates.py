"""Clusters of duplicates and groups of one request, as the stage publishes them: those that a comparison of
all pairs finds, the same in any order, and never a whole template.
"""

import importlib.util
import random
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from curating import Project, Row, chat, lines, of_rows, sentence, with_system
from html_page import lines_of
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.jsonl import read_rows
from pipeline.core.places import PROJECT
from pipeline.stages.curate.comparing.sketched import labels, unite

ASKED, OUTPUTS = sentence(1, 30), sentence(2)
# of a pair of rows: whether they are exact duplicates, near duplicates, or make one request
EXACT, NEAR, RELATED, STRANGERS = "exact near related strangers".split()  # noqa: SIM905


def groups(report: Row) -> tuple[int, int]:
    """Groups of two kept rows or more, and the rows in them."""
    return report["groups"]["groups"], report["groups"]["rows_in_groups"]


def after(row: Row, other: Row) -> Row:
    """One conversation of two."""
    return {"messages": [*row["messages"], *other["messages"]]}


# the second row of a pair, given the request and the answer of the first, and other words
PAIRS: list[tuple[Callable[[str, str, Callable[..., str]], Row], str]] = [
    (lambda ask, out, _: chat(ask, out), EXACT),
    (lambda ask, out, _: chat(ask.upper(), f"  {out}\n"), EXACT),
    (lambda ask, out, _: with_system("Be brief.", chat(ask, out)), NEAR),
    (lambda ask, out, other: with_system(other(200), chat(ask, out)), NEAR),
    (lambda ask, out, _: chat(ask, out + " And so on."), NEAR),
    (lambda ask, out, _: chat("Hello! " + ask, out), NEAR),
    (lambda ask, out, _: chat(ask, out.replace(out.split()[20], "other")), NEAR),
    (lambda _, out, other: chat(other(10), out), NEAR),  # 60 of 90 words
    (lambda ask, _, other: chat(ask, other(60)), RELATED),
    (lambda ask, _, other: chat(ask + " please", other(60)), RELATED),
    (lambda ask, out, _: chat(ask, out, label=False), RELATED),
    (lambda ask, _, other: {"prompt": ask, "answer": other(60)}, RELATED),
    (lambda ask, out, _: {"prompt": ask, "chosen": out, "rejected": "no"}, RELATED),
    (lambda _, out, other: chat(other(60), other(50)), STRANGERS),
    (lambda ask, out, _: after(chat("So:", ask), chat(out, "Well.")), NEAR),
]


def test_one_question_with_two_labels_keeps_both_and_is_named(tmp_path: Path) -> None:
    answers = ["billing", "technical", "billing", "technical"]
    project = of_rows(tmp_path, [chat(sentence(n // 2, 40), label) for n, label in enumerate(answers)])
    report = project.run(near_threshold=0.7)
    assert project.lines() == [1, 2, 3, 4] and report["groups"]["requests_with_several_answers"] == 2
    page = lines_of((tmp_path / "reports/data.html").read_text())
    assert (
        "2 questions are answered differently by several rows (a.jsonl lines 1 and 2; a.jsonl lines 3 and 4)"
        in page
    )
    assert report["answered_differently"] == [["a.jsonl:1", "a.jsonl:2"], ["a.jsonl:3", "a.jsonl:4"]]
    assert "a.jsonl:3" in page


def test_what_is_a_duplicate_and_what_a_relative(tmp_path: Path) -> None:
    rows = []
    for number, (other, _) in enumerate(PAIRS):
        ask, out = sentence(1000 + number, 30), sentence(2000 + number)
        rows += [chat(ask, out), other(ask, out, lambda words, n=number: sentence(3000 + n + words, words))]
    project = of_rows(tmp_path, rows)
    project.run(near_threshold=0.5)
    pairs = {number: kind for number, (_, kind) in enumerate(PAIRS, start=1)}
    alike = {number for number, kind in pairs.items() if kind in (EXACT, NEAR)}
    assert project.clusters() == {frozenset({2 * number - 1, 2 * number}) for number in alike}
    assert len(project.rejects()) == len(alike)
    reasons = {reject["line"] + 1 >> 1: reject["reason"] for reject in project.rejects()}
    assert reasons == {n: {EXACT: "duplicate", NEAR: "near_duplicate"}[pairs[n]] for n in alike}
    related = sum(kind != STRANGERS for kind in pairs.values())
    assert groups(project.run(near_threshold=0.5, drop_duplicates="none")) == (related, 2 * related)


def test_relatives_need_not_be_duplicates(tmp_path: Path) -> None:
    """Rows that are alike, but less than the threshold for dropping them, stay on one side of the split."""
    project = of_rows(tmp_path, [chat(sentence(8, 9), OUTPUTS), chat(sentence(9, 9), OUTPUTS)])
    assert project.run(near_threshold=0.6)["rows_kept"] == 1
    report = project.run(near_threshold=0.9)
    assert (report["rows_kept"], groups(report)) == (2, (1, 2))


def test_two_thumbs_are_two_rows(tmp_path: Path) -> None:
    """The same conversation with a thumb up and one with a thumb down."""
    project = of_rows(tmp_path, [chat(ASKED, OUTPUTS, label=label) for label in (True, False, True)])
    assert groups(project.run()) == (1, 2)
    assert (project.lines(), project.clusters()) == ([1, 2], {frozenset({1, 3})})


def test_names_that_look_like_parts_of_a_conversation_group_nothing(tmp_path: Path) -> None:
    files = {
        f"a:{n}#1.jsonl": lines(*(chat(sentence(n + i), sentence(n + i + 5)) for i in (10, 20)))
        for n in (1, 2)
    }
    assert groups(Project(tmp_path, files).run()) == (0, 0)


def plain_shingles(row: Row) -> set[tuple[str, ...]]:
    words = " ".join(turn["content"] for turn in row["messages"] if turn["role"] != "system").lower().split()
    return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}


def edited(dice: random.Random, row: Row) -> Row:
    """A row that is like this one, more or less."""
    ask, out = (turn["content"] for turn in row["messages"])
    words = out.split()
    for _ in range(dice.choice([0, 1, 2, 8, 20])):
        words[dice.randrange(len(words))] = dice.choice(["other", "else", "thing"]) + str(dice.random())
    return dice.choice(
        [
            chat(ask, " ".join(words)),
            chat(ask.upper(), " ".join(words) + "\n"),
            chat(f"Hi {ask}", " ".join(words)),
            with_system("Be kind.", chat(ask, " ".join(words))),
            chat(ask, sentence(dice.randrange(10**9), 50)),
            chat(sentence(dice.randrange(10**9), 12), " ".join(words)),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_duplicates_and_relatives_are_those_of_a_comparison_of_all_pairs(seed: int, tmp_path: Path) -> None:
    """But for pairs so near a threshold that an estimate may err, which are left out."""
    dice, threshold, margin = random.Random(seed), 0.8, 0.15  # noqa: S311
    bases = [
        chat(sentence(dice.randrange(10**9), 20), sentence(dice.randrange(10**9), 50)) for _ in range(25)
    ]
    rows = [*bases, *(edited(dice, dice.choice(bases)) for _ in range(75))]
    dice.shuffle(rows)
    shingles = [plain_shingles(row) for row in rows]
    alike = {
        (a, b): len(shingles[a - 1] & shingles[b - 1]) / len(shingles[a - 1] | shingles[b - 1])
        for a, b in combinations(range(1, 101), 2)
    }
    request = [row["messages"][-2]["content"].casefold() for row in rows]
    project = of_rows(tmp_path, rows)
    project.run(near_threshold=threshold)
    kept, sources = set(project.lines()), list(read_rows(tmp_path / "data/clusters.jsonl"))
    assert not [pair for pair, share in alike.items() if share > threshold + margin and set(pair) <= kept]
    for cluster in sources:
        numbers = (int(one.partition(":")[2]) for one in cluster["rows"])
        best, *others = sorted(numbers, key=lambda n: n not in kept)
        assert best in kept and not kept & set(others) and cluster["best"] == f"a.jsonl:{best}"
        for other in others:
            share = alike[min(best, other), max(best, other)]
            assert share > threshold - margin
            assert cluster["similarity"] <= share + margin
            long, short = (rows[n - 1]["messages"][-1]["content"] for n in (best, other))
            assert len(long) >= len(short)
    assert kept | frozenset().union(*project.clusters()) == set(range(1, 101))
    together = [pair for pair, share in alike.items() if share > 0.7 + margin]
    together += [(a, b) for a, b in alike if request[a - 1] == request[b - 1]]
    strangers = {n: n for n in range(1, 101)}
    for a, b in [pair for pair, share in alike.items() if share > 0.7 - margin] + together:
        one, other = strangers[a], strangers[b]
        strangers = {n: min(one, other) if root in (one, other) else root for n, root in strangers.items()}
    sides: dict[int, str] = dict.fromkeys(strangers, "")
    for draw in range(4):
        report = project.run(drop_duplicates="none", test_fraction=0.4, val_fraction=0.3, seed=draw)
        assert report["groups"]["groups"] <= len(set(strangers.values()))
        for split in ("train", "val", "test"):
            for line in project.lines(split):
                sides[line] += split[:2]
    contaminated = {n for n in sides if len(sides[n]) < 8}  # left out of one of the runs
    torn = [{a, b} for a, b in together if sides[a] != sides[b]]
    assert not [pair for pair in torn if not contaminated & pair]
    assert len(set(sides.values())) > 10


def test_the_order_of_the_rows_does_not_matter(tmp_path: Path) -> None:
    dice = random.Random(7)  # noqa: S311
    bases = [
        chat(sentence(dice.randrange(10**6), 20), sentence(dice.randrange(10**6), 40)) for _ in range(20)
    ]
    rows = [edited(dice, base) for base in bases * 3]
    order = dice.sample(range(60), 60)
    straight, shuffled = of_rows(tmp_path / "one", rows), of_rows(tmp_path / "two", [rows[i] for i in order])
    assert straight.run(near_threshold=0.7)["groups"] == shuffled.run(near_threshold=0.7)["groups"]
    assert straight.clusters() == {frozenset(order[n - 1] + 1 for n in each) for each in shuffled.clusters()}


# rows of one cluster, and the place of the one that is kept: of two thirds of the words and an ending
BEST: list[tuple[list[tuple[str, float | None]], int]] = [
    ([("", None), ("mail bob@acme.de", None), ("Everybody says", None), ("everybody says", None)], 2),
    ([("write to bob@acme.de now", None), ("write to somebody, now", None)], 1),  # [EMAIL_1] is as long
    ([("mail ann@acme.de", None), ("mail the sales!", None)], 1),
    ([("Everybody says", -2.0), ("", -1.5), ("Everybody says it", None)], 1),  # no reward comes last
    ([("", 0.0), ("Everybody says", -0.0)], 1),
    ([("Everybody", 1e300), ("", 2e300), ("Everybody says", 1e300)], 2),  # equal, the most of float32
    ([("a", -1e300), ("a longer one", None), ("", -5.0)], 2),
    ([("", -1e-30), ("a", 1e-30), ("a longer", -1.0)], 1),
    ([("", 3.0), ("a", 2.5), ("a longer", 2.0), ("a longer one", -3.0)], 0),
    ([("a longer one", 0.0), ("", 1e-45), ("a", -1e-45)], 1),
]


def test_the_best_row_of_a_cluster_is_kept(tmp_path: Path) -> None:
    """The best rewarded, of equals that with the longest answer, the fewest placeholders, the first."""
    rows, expected, clusters = [], [], set()
    for number, (endings, best) in enumerate(BEST):
        expected.append(len(rows) + best + 1)
        clusters.add(frozenset(range(len(rows) + 1, len(rows) + len(endings) + 1)))
        rows += [
            chat(sentence(number + 100, 60), f"{sentence(number + 200, 90)} {ending}".strip())
            | ({} if reward is None else {"reward": reward})
            for ending, reward in endings
        ]
    project = of_rows(tmp_path, rows)
    project.run(near_threshold=0.7)
    assert (project.lines(), project.clusters()) == (expected, clusters)


def test_what_is_not_trained_makes_no_row_better(tmp_path: Path) -> None:
    long = after(chat(ASKED, OUTPUTS), chat("So?", "Yes."))
    long["messages"][-1]["train"] = False
    project = of_rows(tmp_path, [long, chat(ASKED, OUTPUTS + "!")])
    project.run(near_threshold=0.7)
    assert project.lines() == [2]


def load_chats() -> Any:
    """The generator of the benchmarks."""
    spec = importlib.util.spec_from_file_location("chats", PROJECT / "benchmarks/chats.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_planted_duplicates_are_found(tmp_path: Path) -> None:
    generator = load_chats()
    truth, rows = [], []
    for cluster, turns in generator.chats(1500, seed=3):
        truth.append(cluster)
        turns = [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]
        rows.append({"messages": turns})
    project = of_rows(tmp_path, rows)
    report = project.run(near_threshold=0.7)
    found = np.arange(1500)
    for cluster in project.clusters():
        found[[n - 1 for n in cluster]] = min(cluster) - 1
    assert generator.pairwise_f1(np.array(truth), found) > 0.95
    assert 0.15 < report["rows_dropped"] / 1500 < 0.25


def test_similarity_is_estimated_without_bias(tmp_path: Path) -> None:
    """No worse than by 128 coin tosses; and all pairs well above the threshold are found."""
    rows, exact = [], []
    for i in range(300):
        words, other = sentence(i + 1000, 100 + i % 150).split(), sentence(i + 3000, 200).split()
        cut = len(words) * (14 + i % 5) // 100
        pair = chat("ask", " ".join(words)), chat("ask", " ".join(words[cut:] + other[:cut]))
        one, two = map(plain_shingles, pair)
        rows += pair
        exact.append(len(one & two) / len(one | two))
    project = of_rows(tmp_path, rows)
    project.run(near_threshold=0.5)
    clusters = list(read_rows(tmp_path / "data/clusters.jsonl"))
    found = {int(one["rows"][0].partition(":")[2]) // 2: one["similarity"] for one in clusters}
    assert min(exact) > 0.6 and max(exact) < 0.78
    assert len(found) == len(exact)
    error = np.array([similarity - exact[pair] for pair, similarity in found.items()])
    assert abs(error.mean()) < 0.01
    assert np.sqrt((error**2).mean()) < np.sqrt(0.25 / 128)


def family(of: Callable[[int], Row]) -> list[Row]:
    return [of(i) for i in range(30)]


def answered(i: int) -> Row:
    return chat(ASKED, f"{OUTPUTS} item{i}x")


FAMILIES: dict[str, tuple[list[Row], int, tuple[int, int]]] = {
    "answer": (family(answered), 1, (0, 0)),
    "request": (family(lambda i: chat(f"{ASKED} nr{i}z", OUTPUTS)), 1, (0, 0)),
    "both": (family(lambda i: chat(f"Nr{i}z: {ASKED}", f"{OUTPUTS} item{i}x")), 1, (0, 0)),
    "with copies": (family(answered) + [chat(ASKED, OUTPUTS)] * 5, 1, (0, 0)),
    "one request": (family(lambda i: chat(ASKED, sentence(i))), 30, (1, 30)),
    "one short request": (family(lambda i: chat("Write a story.", sentence(i))), 30, (0, 0)),
    "template": (
        family(lambda i: chat(f"{sentence(9, 300)} {sentence(i, 15)}", sentence(i + 50, 5))),
        30,
        (0, 0),
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_of_a_tenth_of_the_rows(name: str, tmp_path: Path) -> None:
    """Check that text which so many rows share is boilerplate, and that rows which differ in little else are
    near-duplicates of each other all the same.
    """
    rows, kept, related = FAMILIES[name]
    others = [chat(sentence(i, 20), sentence(i + 5000, 30)) for i in range(1000, 1270)]
    project = of_rows(tmp_path, [*others, *rows])
    report = project.run(near_threshold=0.8)
    assert (report["rows_kept"], groups(report)) == (270 + kept, related)
    assert project.lines()[:270] == [*range(1, 271)]


def test_a_template_is_not_one_cluster(tmp_path: Path) -> None:
    """Rows of one long instruction that differ in a word or two, and copies of one that end otherwise; what a
    tenth of them has besides is theirs, not the template's.
    """
    instruction = sentence(99, 80)
    rows = [
        chat(
            f"{instruction}\n\nName: {sentence(i, 6)}",
            f'{{"name": "{sentence(i, 4)}", "kind": "function", "public": true}}',
        )
        for i in range(270)
    ]
    first = rows[0]["messages"]
    rows += [chat(first[0]["content"], first[1]["content"] + end) for end in (" .", " !", " ?")]
    rows += family(lambda i: chat(f"{instruction} {ASKED}", f"{OUTPUTS} item{i}x"))
    project = of_rows(tmp_path, rows)
    report = project.run(near_threshold=0.8)
    assert project.clusters() == {frozenset({1, 271, 272, 273}), frozenset(range(274, 304))}
    assert (report["rows_kept"], groups(report)) == (271, (0, 0))


def test_what_says_nothing_but_the_template_is_compared_by_it(tmp_path: Path) -> None:
    rows = [with_system(f"Be {sentence(i, 3)}.", chat(ASKED, OUTPUTS)) for i in range(30)]
    rows += [chat(sentence(i, 20), sentence(i + 50, 30)) for i in range(100, 110)]
    assert of_rows(tmp_path, rows).run()["rows_kept"] == 11


def test_a_request_of_half_the_rows_groups_nothing(tmp_path: Path) -> None:
    for number, request in enumerate(("Write a story.", ASKED)):
        rows = [chat(request, sentence(i)) for i in range(100)]
        assert groups(of_rows(tmp_path / f"{number}", rows).run()) == (0, 0)
        assert groups(of_rows(tmp_path / f"{number} few", rows[:10]).run()) == (1, 10)


def test_a_request_made_of_boilerplate_is_still_a_request(tmp_path: Path) -> None:
    common = sentence(5, 20)
    rows = [chat(f"{common} {sentence(i, 3)}", sentence(i)) for i in range(100, 140)]
    rows += [chat(common, sentence(i)) for i in (1, 2)]
    assert groups(of_rows(tmp_path, rows).run()) == (1, 2)


def test_a_chain_is_cut_where_rows_are_no_longer_alike_the_kept_one(tmp_path: Path) -> None:
    """Neighbors are alike, the ends share nothing; all are related, so they are on one side of the split."""
    words = [f"w{i}" for i in range(400)]
    project = of_rows(tmp_path, [chat("ask", " ".join(words[i * 6 : i * 6 + 100])) for i in range(40)])
    report = project.run(near_threshold=0.8)
    assert 5 < report["rows_kept"] < 40
    assert all(one["similarity"] >= 0.8 for one in read_rows(tmp_path / "data/clusters.jsonl"))
    lonely = set(project.lines()) - frozenset().union(*project.clusters())
    assert sum(map(len, project.clusters())) == 40 - len(lonely)
    assert groups(report) == (1, report["rows_kept"])
    assert groups(project.run(near_threshold=0.8, drop_duplicates="none")) == (1, 40)


EDGES = st.integers(2, 12).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=8), max_size=4),
    )
)


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
