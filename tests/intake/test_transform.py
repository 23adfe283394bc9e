"""curate.transform: rows made by a function of the user's, each with its ancestor, on its side of the split;
what is wrong with the function is one sentence.
"""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from curating import SPLITS, Project, Row, lines, sentence
from make import quench
from tokenizer_folders import smollm_folder

from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import file_hash
from pipeline.core.jsonl import read_rows
from pipeline.intake.rows import transform

PAIRS = """
def pair(row):
    if not row.get("bash"):
        return "no command"
    return {"prompt": row["nl"], "completion": row["bash"]}

def several(row):
    return [{"prompt": text, "completion": row["bash"]} for text in row["nl"]]

def broken(row):
    return row["missing"]
"""


def project(root: Path, rows: list[Row], code: str = PAIRS, **files: bytes) -> Project:
    return Project(root, {"a.jsonl": lines(*rows), **files}, guard={"mine.py": code})


def asked(rows: list[Row]) -> list[str]:
    return [row["messages"][0]["content"] for row in rows]


def check_sides(made: Project, suffix: str) -> None:
    """Check that the rows of each of 59 lines are in one split; `suffix` is the pattern behind `~1`."""
    splits = defaultdict(set)
    for split in SPLITS:
        for row in made.rows(split):
            source = re.fullmatch(rf"a\.jsonl:(\d+)~[123]{suffix}", row["source"])
            assert source
            splits[int(source[1])].add(split)
    assert [*map(len, splits.values())] == [1] * 59


def test_a_function_makes_the_rows_and_says_why_there_is_none(tmp_path: Path) -> None:
    made = project(
        tmp_path, [{"nl": "List the files.", "bash": "ls"}, {"nl": "Nothing.", "bash": ""}, {"x": 1}]
    )
    report = made.run(transform="python:mine.py:pair")
    (row,) = made.rows()
    assert row["source"] == "a.jsonl:1" and row["messages"][1]["content"] == "ls"
    rejects = [(entry["line"], entry["rule"], entry["reason"], entry["detail"]) for entry in made.rejects()]
    assert rejects == [(line, "transform", "transform_rejected", "no command") for line in (2, 3)]
    assert report["transform"] == {
        "functions": {"*": "python:mine.py:pair"},
        "sha256": {"mine.py": file_hash(tmp_path / "data/guard/mine.py")},
        "rows_added": 0,
    }
    assert not list((tmp_path / "data/guard").glob("__pycache__"))


@pytest.mark.parametrize("processes", [1, 2])
def test_rows_of_one_line_have_their_ancestor_and_stay_on_one_side(processes: int, tmp_path: Path) -> None:
    """Their texts have nothing in common, so that nothing else keeps them together."""
    rows = [
        {"nl": [sentence(10 * line + number) for number in range(3)], "bash": sentence(line, 5)}
        for line in range(1, 60)
    ]
    made = project(tmp_path, rows)
    report = made.run(
        processes,
        transform="python:mine.py:several",
        val_fraction=0.2,
        test_fraction=0.3,
        source_weights={"*": 2.0},
    )
    check_sides(made, r"(\*2)?")
    assert report["rows_read"] == 59 and report["transform"]["rows_added"] == 118
    assert report["rules"][1] == {
        "rule": "transform",
        "rows_in": 59,
        "rows_out": 177,
        "rejected": 0,
        "changed": 0,
    }
    assert {len(report["splits"]), report["rows_accepted"]} == {3, 177}


def test_rows_of_one_line_stay_on_one_side_if_they_are_cut(tmp_path: Path) -> None:
    rows = [
        {"nl": [sentence(10 * line + number) for number in range(3)], "bash": sentence(line, 40)}
        for line in range(1, 60)
    ]
    made = project(tmp_path, rows)
    smollm_folder(made.root / "models/base")
    made.run(
        transform="python:mine.py:several",
        overlong="truncate",
        max_tokens=80,
        val_fraction=0.2,
        test_fraction=0.3,
    )
    check_sides(made, "#cut")


def test_one_of_several_rows_may_be_rejected(tmp_path: Path) -> None:
    made = project(tmp_path, [{"nl": ["One?", " ", "Three?"], "bash": "ls"}, {"nl": [], "bash": "ls"}])
    report = made.run(transform="python:mine.py:several", drop_duplicates="none")
    assert asked(made.rows()) == ["One?", "Three?"]
    first, second = made.rejects()
    assert (first["line"], first["reason"]) == (1, "empty_turn")
    assert (second["line"], second["reason"]) == (2, "transform_rejected")
    assert first["detail"].startswith("row 2 that curate.transform made of this one: ")
    assert (report["rows_read"], report["rows_accepted"], report["rows_rejected"]) == (2, 2, 2)
    assert report["files"]["a.jsonl"]["rejected"] == 2


def test_functions_by_glob_and_files_without_one(tmp_path: Path) -> None:
    made = project(
        tmp_path, [{"nl": "List the files.", "bash": "ls"}], **{"b.csv": b"prompt,completion\n2 + 2?,4\n"}
    )
    made.run(transform={"a*": "python:mine.py:pair"})
    assert asked(made.rows()) == ["List the files.", "2 + 2?"]
    with pytest.raises(ConfigError, match=r"Q-CURATE-008: curate\.transform names 'c"):
        made.run(transform={"c*": "python:mine.py:pair"})


def test_a_function_comes_before_a_mapping(tmp_path: Path) -> None:
    code = "def f(row):\n    return {'Question': row['q'].upper(), 'Command': row['c']}\n"
    made = project(tmp_path, [{"q": "list", "c": "ls"}], code)
    made.run(transform="python:mine.py:f", fields={"*": {"user": "Question", "assistant": "Command"}})
    assert asked(made.rows()) == ["LIST"]


MISSPELT = "def f(row):\n    return [{'promt': row['nl'], 'completion': row['bash']}]\n"
ASKED = [{"nl": "List the files.", "bash": "ls"}, {"nl": "Where am I?", "bash": "pwd"}]


def test_a_mapping_that_fits_no_row_is_told_the_keys_that_the_function_makes(tmp_path: Path) -> None:
    made = project(tmp_path, ASKED, MISSPELT)
    mapping = {"curate": {"transform": "python:mine.py:f", "fields": {"*": {"prompt": "prompt"}}}}
    (tmp_path / "params.yaml").write_text(json.dumps(mapping))
    told = "no row has prompt for prompt; the rows that python:mine.py:f makes of it have the keys promt, "
    assert told in quench("data", "check", "--root", str(tmp_path), str(made.raw)).stdout
    with pytest.raises(ConfigError) as error:
        made.run(**mapping["curate"])
    assert error.value.id == "Q-CURATE-020" and told in error.value.sentence


def test_a_row_of_the_function_that_no_format_fits_is_told_from_the_line(tmp_path: Path) -> None:
    made = project(tmp_path, ASKED, MISSPELT)
    (tmp_path / "params.yaml").write_text('curate: {transform: "python:mine.py:f"}\n')
    told = "after curate.transform: the row has the keys promt, completion, and prompt is missing or empty"
    shown = quench("data", "check", "--root", str(tmp_path), str(made.raw))
    assert f"a.jsonl: none of 2 rows can be read; {told}" in shown.stdout
    with pytest.raises(DataError) as error:
        made.run(transform="python:mine.py:f")
    assert error.value.id == "Q-CURATE-019" and told in error.value.sentence
    assert "correct python:mine.py:f, " in error.value.sentence


def test_one_message_that_the_function_makes_is_not_mapped(tmp_path: Path) -> None:
    code = "def f(row):\n    return {'role': 'user', 'content': row['nl']}\n"
    made = project(tmp_path, ASKED, code)
    (tmp_path / "params.yaml").write_text('curate: {transform: "python:mine.py:f"}\n')
    shown = quench("data", "check", "--root", str(tmp_path), str(made.raw))
    assert "after curate.transform: looks like one message of a chat" in shown.stdout
    assert "fields:" not in shown.stdout


RANDOM = "import random\ndef f(row):\n    return {'prompt': 'a', 'completion': str(random.random())}\n"
COUNTS = """
seen = set()
def f(row):
    is_new = str(row) not in seen
    seen.add(str(row))
    return row if is_new else None
"""
ENDLESS = """
def f(row):
    while True:
        try:
            pass
        except Exception:
            pass
"""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "def f(row):\n    return row['x']\n",
            "it raised KeyError: 'x'; the row has the keys prompt, completion: ",
        ),
        (
            "def f(row):\n    return row.pop('prompt') + row['x']\n",
            "the row has the keys prompt, completion: ",
        ),
        ("import sys\ndef f(row):\n    sys.exit(0)\n", "it raised SystemExit: 0"),
        ("def f(row):\n    return 7\n", "it returned 7, which is no row"),
        ("def f(row):\n    return [row, 7]\n", "which is no row"),
        ("def f(row):\n    return row | {'a': {1, 2}}\n", "what JSON doesn't have"),
        ("def f(row):\n    row['a'] = row\n    return row\n", "what JSON doesn't have"),
        ("def f(row):\n    return [row] * 10001\n", "it returned 10,001 rows"),
        (RANDOM, "something else when it was called again"),
        (COUNTS, "something else when it was called again"),
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_what_is_wrong_with_a_function_is_one_sentence(
    code: str, words: str, processes: int, tmp_path: Path
) -> None:
    check_sentence(code, words, processes, tmp_path)


def test_a_function_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform, "SECONDS", 0.5)
    check_sentence(ENDLESS, "it took longer than 0.5 s", 1, tmp_path)


@pytest.mark.slow
def test_it_is_stopped_in_another_process_too(tmp_path: Path) -> None:
    """Nothing that a test sets reaches that process, so this waits as long as a user would."""
    check_sentence(ENDLESS, "it took longer than 10 s", 2, tmp_path)


def check_sentence(code: str, words: str, processes: int, tmp_path: Path) -> None:
    made = project(tmp_path, [{"prompt": "2 + 2?", "completion": "4"}], code)
    with pytest.raises(DataError) as error:
        made.run(processes, transform="python:mine.py:f")
    assert error.value.id == "Q-CURATE-025" and words in error.value.sentence
    assert (
        "a.jsonl:1" in error.value.sentence and str(tmp_path / "data/guard/mine.py") in error.value.sentence
    )
    assert not (tmp_path / "data/final").exists()


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ("{'prompt': 'a', 'completion': 'b', 'score': float('nan')}", "not_finite"),
        ("{'prompt': 'a\\ud83d', 'completion': 'b'}", "lone_surrogate"),
        ("{'prompt': 'a\\x00', 'completion': 'b'}", "control_character"),
        ("{'prompt': 'a', 'completion': 'b', 'n': 10**30}", "number_out_of_range"),
        ("{'reject': 'too short'}", "transform_rejected"),
        ("None", "transform_rejected"),
        ("{'nl': 'a'}", "unknown_format"),
    ],
)
def test_what_a_function_returns_is_read_as_strictly_as_a_line(
    returned: str, reason: str, tmp_path: Path
) -> None:
    code = f"def f(row):\n    return {returned} if 'bad' in row else row\n"
    made = project(tmp_path, [{"prompt": "2 + 2?", "completion": "4"}, {"bad": 1}], code)
    made.run(transform="python:mine.py:f")
    assert [(entry["line"], entry["reason"]) for entry in made.rejects()] == [(2, reason)]


@pytest.mark.parametrize(
    ("name", "code", "id"),
    [
        ("gone.py:f", PAIRS, "Q-CORE-013"),
        ("mine.py:f", "def f(row)\n", "Q-CORE-014"),
        ("mine.py:g", PAIRS, "Q-CORE-015"),
    ],
)
def test_a_function_that_is_not_there_is_named(name: str, code: str, id: str, tmp_path: Path) -> None:
    made = project(tmp_path, [{"prompt": "2 + 2?", "completion": "4"}], code)
    with pytest.raises(ConfigError) as error:
        made.run(transform=f"python:{name}")
    assert error.value.id == id
    assert ("make rows of rows" in error.value.sentence) == (id != "Q-CORE-014")


@pytest.mark.parametrize("value", ["mine.py:f", "python:../mine.py:f", "python:mine.py", 7])
def test_a_spelling_that_names_no_function_is_refused(value: Any, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(json.dumps({"curate": {"transform": value}}))
    shown = quench("config", "show", "curate", "--root", str(tmp_path))
    assert shown.exit_code == 2 and "curate.transform" in shown.stderr


def test_data_check_tries_the_function(tmp_path: Path) -> None:
    made = project(tmp_path, [{"nl": "List.", "bash": "ls"}, {"nl": "None.", "bash": ""}])
    (tmp_path / "params.yaml").write_text('curate: {transform: "python:mine.py:pair"}\n')
    shown = quench("data", "check", "--root", str(tmp_path), str(made.raw))
    assert shown.exit_code == 3 and "a.jsonl:2: transform_rejected: no command" in shown.stdout
    assert list(read_rows(made.raw / "a.jsonl"))
