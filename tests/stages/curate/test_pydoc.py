"""The demo's data: real, enough, the same every time, and every answer can be read off its question."""

import ast
import json
import os
import re
import sys
from pathlib import Path

import pytest
from curating import RECIPE, Project
from make import ended

from pipeline.core.jsonl import read_rows
from pipeline.core.places import PROJECT

SCRIPT = PROJECT / "examples/pydoc.py"
ENOUGH = 1500


def write(out: Path, **environment: str) -> bytes:
    """Run the script as a user does, elsewhere and with another environment."""
    command = [sys.executable, SCRIPT, "--out", out]
    done = ended(command, cwd=out.parent, env=os.environ | environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(rf"\d+ rows in {re.escape(str(out))}\n", done.stdout)
    return out.read_bytes()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pydoc") / "pydoc.jsonl"
    write(out)
    return out


@pytest.fixture(scope="module")
def rows(made: Path) -> list[tuple[str, str]]:
    """(question, answer) of every row."""
    found = []
    for row in read_rows(made):
        assert list(row) == ["messages"]
        assert [turn["role"] for turn in row["messages"]] == ["user", "assistant"]
        found.append((row["messages"][0]["content"], row["messages"][1]["content"]))
    return found


def test_the_bytes_do_not_depend_on_hash_seed_place_home_or_screen(made: Path, tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    places = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "TZ": "Asia/Tokyo"}
    again = write(tmp_path / "deeper/x.jsonl", PYTHONHASHSEED="7", COLUMNS="40", LANG="C", **places)
    assert again == made.read_bytes()
    assert list(tmp_path.glob("**/.*")) == []


def test_there_are_enough_rows_and_none_twice(rows: list[tuple[str, str]]) -> None:
    assert len(rows) >= ENOUGH
    assert len({question for question, _ in rows}) == len(rows)
    assert len({answer for _, answer in rows}) == len(rows)


def test_every_field_of_an_answer_can_be_read_off_its_question(rows: list[tuple[str, str]]) -> None:
    for question, answer in rows:
        task, _, module, signature, _, doc = question.split("\n", 5)
        record = json.loads(answer)
        assert list(record) == ["module", "name", "required", "optional", "summary"]
        assert task == "Describe this Python callable as JSON."
        assert module == f"module {record['module']}"
        function = ast.parse(f"def {signature}: pass").body[0]
        assert isinstance(function, ast.FunctionDef)
        assert function.name == record["name"]
        assert (record["required"], record["optional"]) == parameters(function.args)
        assert " ".join(doc.split()).startswith(record["summary"])
        assert record["summary"]


def parameters(arguments: ast.arguments) -> tuple[list[str], list[str]]:
    """(required, optional) in order, by Python's own parser."""
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    border = len(positional) - len(arguments.defaults)
    required, optional = positional[:border], positional[border:]
    if arguments.vararg:
        optional.append("*" + arguments.vararg.arg)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        (optional if default else required).append(argument.arg)
    if arguments.kwarg:
        optional.append("**" + arguments.kwarg.arg)
    return required, optional


def test_answers_are_one_compact_line(rows: list[tuple[str, str]]) -> None:
    for question, answer in rows:
        assert answer == json.dumps(json.loads(answer), ensure_ascii=False, separators=(",", ":"))
        assert len(question) <= 800
        assert len(answer) <= 400


def test_nothing_of_this_machine_leaks(rows: list[tuple[str, str]]) -> None:
    text = "\n".join(question + answer for question, answer in rows)
    for private in (str(SCRIPT.parent), str(Path.cwd()), sys.prefix, str(Path(os.__file__).parent)):
        assert private not in text
    assert not re.search(r" at 0x[0-9a-f]+", text)


def test_names_are_public_and_modules_harmless(rows: list[tuple[str, str]]) -> None:
    records = [json.loads(answer) for _, answer in rows]
    names = [
        name.lstrip("*")
        for record in records
        for name in [*record["module"].split("."), record["name"], *record["required"], *record["optional"]]
    ]
    assert not [name for name in names if name.startswith("_")]
    tops = {record["module"].split(".")[0] for record in records}
    assert tops <= sys.stdlib_module_names
    assert not tops & {"antigravity", "this", "idlelib", "test", "lib2to3", "tkinter", "turtle", "turtledemo"}
    assert {"json", "os", "math", "pathlib", "urllib"} <= tops


def test_curate_keeps_nearly_every_row(made: Path, tmp_path: Path) -> None:
    """All are usable; what goes: variants of a function, and training rows sharing a test row's sentence."""
    report = Project(tmp_path, {"pydoc.jsonl": made.read_bytes()}).run(**RECIPE)
    assert report["rows_rejected"] == 0
    assert set(report["rejected"]) <= {"near_duplicate", "contaminated"}
    assert report["rows_kept"] >= 0.95 * report["rows_read"] >= 0.95 * ENOUGH
    assert report["splits"]["test"] >= 100
