"""Splits and balance: groups stay whole, shares hold in every domain, rows mostly stay where they are, and
which rows are left out does not depend on their order.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from curating import SPLITS, Project, Row, chat, lines, of_rows


def plain(number: int, domain: str = "a") -> Row:
    """A row that is like no other."""
    return chat(f"word{number} asks", f"thing{number * 31} answers", domain=domain)


def numbered(count: int, domains: dict[str, int] | None = None) -> list[Row]:
    names = [name for name, rows in (domains or {"a": count}).items() for _ in range(rows)]
    return [plain(number, name) for number, name in enumerate(names)]


def ids(project: Project, *splits: str) -> set[str]:
    return {row["id"] for row in project.rows(*splits)}


# rows of domains, the share of test and of val, and how many of each domain go there
SHARES: list[tuple[dict[str, int], float, float, dict[str, tuple[int, int]]]] = [
    ({"a": 500, "b": 300, "c": 20}, 0.2, 0.1, {"a": (100, 50), "b": (60, 30), "c": (4, 2)}),
    ({"a": 10, "b": 10}, 0.1, 0.0, {"a": (1, 0), "b": (1, 0)}),
    ({"a": 5, "b": 95}, 0.12, 0.0, {"a": (1, 0), "b": (11, 0)}),
    ({"a": 3}, 0.1, 0.0, {"a": (1, 0)}),  # at least one of two rows or more
    ({"a": 1}, 0.0, 0.0, {"a": (0, 0)}),
]


@pytest.mark.parametrize(("domains", "test", "val", "expected"), SHARES)
def test_shares_are_exact_in_every_domain(
    domains: dict[str, int], test: float, val: float, expected: dict[str, tuple[int, int]], tmp_path: Path
) -> None:
    report = of_rows(tmp_path, numbered(0, domains)).run(test_fraction=test, val_fraction=val)
    assert report["domains"] == {
        name: {"read": rows, "train": rows - sum(expected[name])}
        | dict(zip(("test", "val"), expected[name], strict=True))
        for name, rows in domains.items()
    }


def test_of_many_domains_of_one_row_one_gives_the_test(tmp_path: Path) -> None:
    project = of_rows(tmp_path, numbered(0, {f"d{n}": 1 for n in range(10)}))
    assert project.run(test_fraction=0.1)["splits"] == {"train": 9, "val": 0, "test": 1}
    # and another one what is kept for monitoring
    assert project.run(test_fraction=0.2, val_fraction=0.1)["splits"] == {"train": 7, "val": 1, "test": 2}


@pytest.mark.parametrize("seed", range(4))
def test_a_group_is_never_torn_and_quotas_are_never_passed(seed: int, tmp_path: Path) -> None:
    """Groups of one request, over domains; repeated rows are dropped, and count for no quota."""
    dice = random.Random(seed)  # noqa: S311
    rows = [
        chat(
            f"question {group} about word{group * 7919}",
            f"answer {dice.randrange(4)} alpha{group * 31}",
            domain=dice.choice("abc"),
        )
        for group in (dice.randrange(40) for _ in range(160))
    ]
    project = of_rows(tmp_path, rows)
    report = project.run(val_fraction=0.25, test_fraction=0.3, seed=seed)
    sides = {split: {row["messages"][0]["content"] for row in project.rows(split)} for split in SPLITS}
    assert not sides["train"] & sides["test"] | sides["train"] & sides["val"] | sides["val"] & sides["test"]
    kept = report["rows_kept"]
    assert 0.2 * kept < report["splits"]["test"] <= round(0.3 * kept)
    assert 0.15 * kept < report["splits"]["val"] <= round(0.25 * kept)


def test_test_does_not_change_with_the_share_of_val_nor_val_with_that_of_test(tmp_path: Path) -> None:
    project, found = of_rows(tmp_path, numbered(200)), []
    for test, val in ((0.2, 0.1), (0.2, 0.4), (0.4, 0.1)):
        project.run(test_fraction=test, val_fraction=val)
        found.append((ids(project, "test"), ids(project, "val")))
    assert found[0][0] == found[1][0] and len(found[0][0]) == 40
    assert found[0][1] == found[2][1] and len(found[0][1]) == 20


@pytest.mark.slow
def test_most_rows_stay_when_others_come_or_their_order_changes(tmp_path: Path) -> None:
    """Of several files as of one."""
    rows, shares = numbered(2000), {"val_fraction": 0.1, "test_fraction": 0.2}
    before, after = of_rows(tmp_path / "1", rows[:1500]), of_rows(tmp_path / "2", rows)
    for project in (before, after):
        project.run(**shares)
    stayed = [ids(before, split) & ids(after, split) for split in SPLITS]
    assert sum(map(len, stayed)) > 0.95 * 1500
    order = random.Random(5).sample(rows, 2000)  # noqa: S311
    shuffled = of_rows(tmp_path / "3", order)
    shuffled.run(**shares)
    assert [ids(shuffled, split) for split in SPLITS] == [ids(after, split) for split in SPLITS]
    after.run(**shares, seed=7)
    assert ids(after, "test") != ids(shuffled, "test")


def test_a_group_too_large_for_the_test_split_is_trained(tmp_path: Path) -> None:
    rows = [chat("one question of many", f"word{n} alpha{n * 31}") for n in range(15)]
    project = of_rows(tmp_path, rows + numbered(10))
    project.run(test_fraction=0.4)
    assert project.lines("train") == [*range(1, 16)]
    # what is left for val is not taken from test
    report = project.run(test_fraction=0.2, val_fraction=0.3)
    assert report["splits"] == {"train": 15, "val": 5, "test": 5}


def balanced(root: Path, domains: dict[str, int], **changes: Any) -> Counter[str]:
    """Return the number of training rows of each domain that stay, and check that the report agrees."""
    project = of_rows(root, numbered(0, domains))
    report = project.run(**changes)
    found = Counter(row["domain"] for row in project.rows())
    assert report["rejected"].get("sampled_out", 0) == sum(domains.values()) - found.total()
    assert {name: one["after"] for name, one in report["balance"].items()} == found
    assert {name: one["before"] for name, one in report["balance"].items()} == domains
    return found


THREE = {"a": 810, "b": 90, "c": 9}


@pytest.mark.parametrize(
    ("domains", "temperature", "expected"),
    [
        (THREE, 1.0, [810, 90, 9]),
        (THREE, 0.0, [9, 9, 9]),
        (THREE, 0.5, [86, 29, 9]),
        ({"a": 25, "b": 7}, 0.0, [7, 7]),  # 25 * (7 / 25) is more than 7
    ],
)
def test_temperature_brings_domains_together(
    domains: dict[str, int], temperature: float, expected: list[int], tmp_path: Path
) -> None:
    assert [*balanced(tmp_path, domains, temperature=temperature).values()] == expected


def test_weights_count_per_source(tmp_path: Path) -> None:
    """Held-out rows don't count."""
    rows = numbered(300)
    files = {
        name: lines(*rows[at : at + 100]) for name, at in (("a.jsonl", 0), ("b.jsonl", 100), ("c.jsonl", 200))
    }
    project, weights = Project(tmp_path, files), {"b.*": 0.5, "c.jsonl": 0.0}
    project.run(source_weights=weights)
    assert Counter(row["source"][0] for row in project.rows()) == {"a": 100, "b": 50}
    project.run(source_weights=weights, test_fraction=0.1)
    assert Counter(row["source"][0] for row in project.rows())["b"] < 50
    assert len(project.rows("test")) == 30 and any(row["source"][0] == "c" for row in project.rows("test"))


def copies_of(project: Project, folder: str) -> Counter[int]:
    """Count the training rows of a folder by how often they are there."""
    sources = [row["source"] for row in project.rows() if row["source"].startswith(folder)]
    assert len(set(sources)) == len(sources)
    return Counter(Counter(source.partition("*")[0] for source in sources).values())


def two_sources(root: Path) -> Project:
    """40 rows below best/, 40 in another file."""
    rows = numbered(80)
    for row in rows:
        del row["domain"]
    return Project(root, {"best/in/a.jsonl": lines(*rows[:40]), "b.jsonl": lines(*rows[40:])})


@pytest.mark.parametrize(
    ("weight", "copies"), [(3.0, {3: 40}), (2.5, {2: 20, 3: 20}), (1.0, {1: 40}), (1.01, {1: 39, 2: 1})]
)
def test_a_weight_above_1_repeats_training_rows(
    weight: float, copies: dict[int, int], tmp_path: Path
) -> None:
    project = two_sources(tmp_path)
    report = project.run(source_weights={"best/": weight})
    assert copies_of(project, "best/") == copies and copies_of(project, "b.jsonl") == {1: 40}
    more = sum((number - 1) * rows for number, rows in copies.items())
    assert report["rows_repeated"] == more and report["rows_kept"] == report["splits"]["train"] == 80 + more
    assert report["balance"] == {"b": {"before": 40, "after": 40}, "best": {"before": 40, "after": 40 + more}}
    (step,) = (step for step in report["rules"] if step["rule"] == "balance")
    assert (step["rows_in"], step["rows_out"]) == (80, 80 + more)
    # copies stand beside their row, so that the order of files stays one
    places = [place_of(row["source"]) for row in project.rows()]
    assert places == sorted(places)


def place_of(source: str) -> tuple[str, int]:
    file, _, number = source.partition("*")[0].rpartition(":")
    return file, int(number)


def test_no_held_out_row_is_repeated_and_no_row_changes_sides(tmp_path: Path) -> None:
    project, shares = two_sources(tmp_path), {"test_fraction": 0.2, "val_fraction": 0.1}
    project.run(**shares)
    before = {split: ids(project, split) for split in SPLITS}
    held_out = project.rows("val", "test")
    project.run(**shares, source_weights={"*": 4.0})
    assert project.rows("val", "test") == held_out
    assert {split: ids(project, split) for split in SPLITS} == before
    assert copies_of(project, "") == {4: 56}


def test_the_seed_says_which_rows_come_once_more(tmp_path: Path) -> None:
    found = []
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        project = of_rows(tmp_path / name, numbered(200))
        project.run(source_weights={"*": 1.5}, seed=seed)
        found.append({row["id"] for row in project.rows() if "*" in row["source"]})
    assert found[0] == found[1] != found[2] and len(found[0]) == len(found[2]) == 100


def test_a_repeated_row_is_no_duplicate_and_duplicates_go_first(tmp_path: Path) -> None:
    twice = numbered(10)
    report = of_rows(tmp_path, [*twice, *twice]).run(source_weights={"*": 2.0})
    assert report["rejected"] == {"duplicate": 10} and report["rows_kept"] == 20


@pytest.mark.parametrize(
    ("domains", "temperature", "expected"),
    [
        (THREE, 1.0, [810, 90, 9]),
        (THREE, 0.0, [810, 810, 810]),
        (THREE, 0.5, [810, 270, 86]),  # the shares of the square roots
        ({"a": 7, "b": 1}, 0.0, [7, 7]),
    ],
)
def test_balance_up_repeats_the_rows_of_small_domains(
    domains: dict[str, int], temperature: float, expected: list[int], tmp_path: Path
) -> None:
    project = of_rows(tmp_path, numbered(0, domains))
    report = project.run(temperature=temperature, balance="up")
    found = Counter(row["domain"] for row in project.rows())
    assert [found[name] for name in domains] == expected
    assert report["rejected"] == {} and report["rows_repeated"] == sum(expected) - sum(domains.values())
    for name, rows in domains.items():
        copies = Counter(row["id"] for row in project.rows() if row["domain"] == name)
        assert len(copies) == rows and max(copies.values()) - min(copies.values()) <= 1


def test_weights_hold_within_a_domain_that_is_made_smaller(tmp_path: Path) -> None:
    """Weights come first: of what is left of the domain, the weighted source still has its share."""
    rows = numbered(0, {"both": 200, "small": 100})
    files = {"best/a.jsonl": rows[:100], "b.jsonl": rows[100:200], "c.jsonl": rows[200:]}
    project = Project(tmp_path, {name: lines(*some) for name, some in files.items()})
    project.run(source_weights={"best/": 3.0}, temperature=0.0)
    found = Counter(row["source"].partition("/")[0] for row in project.rows() if row["domain"] == "both")
    assert found.total() == 100 and 60 < found["best"] < 90


def test_a_domain_that_is_repeated_often_is_named_on_the_page(tmp_path: Path) -> None:
    project = of_rows(tmp_path, numbered(0, {"many": 60, "few": 10}))
    project.run(temperature=0.0, balance="up")
    page = (project.root / "reports/data.html").read_text()
    assert "10 rows of domain few 6 times" in page and "of domain many" not in page
    project.run(temperature=0.5, balance="up")
    assert "of domain few" not in (project.root / "reports/data.html").read_text()


def test_which_rows_stay_does_not_depend_on_their_order(tmp_path: Path) -> None:
    rows, found = numbered(0, {"a": 300, "b": 100}), []
    shuffled = random.Random(2).sample(rows, 400)  # noqa: S311
    for name, some, seed in (("one", rows, 1), ("two", shuffled, 1), ("three", rows, 2)):
        project = of_rows(tmp_path / name, some)
        project.run(temperature=0.2, seed=seed)
        found.append(ids(project))
    assert found[0] == found[1] != found[2] and len(found[0]) == len(found[2]) < 400
