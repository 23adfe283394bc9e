"""Faults planted on purpose, each in a copy of the project: the test that its diff names must turn red.

    pytest -m exhaustive tests/test_plants.py [-k NAME]

`plants/NAME.diff` begins with a sentence on what it breaks and a line `test: FILE::TEST` for each test that
finds it. Whoever moves the code, or the test, moves the diff.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kept import STORE
from make import ended

from pipeline.core.places import PROJECT

PLANTS = {file.stem: file for file in sorted((PROJECT / "tests/plants").glob("*.diff"))}
MOST_LINES = 15  # of a diff, its head and context included
# what a test says that found another result, and not that something is missing or can't be read
FOUND = re.compile(r"(\w+\.)*AssertionError\b|assert\b|Failed: (DID NOT RAISE|Regex)")
Results = dict[str, tuple[str, str]]  # test → passed, failure, error or skipped, and the message


def named_by(name: str) -> list[str]:
    """The tests that must turn red, as pytest takes them."""
    return re.findall(r"^test: (\S.*)$", PLANTS[name].read_text(encoding="utf-8"), re.MULTILINE)


def git(*words: str, where: Path) -> "subprocess.CompletedProcess[str]":
    """`git apply …` as in a folder that is no repository."""
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(where.parent)}
    return ended(["git", *words], cwd=where, env=environment)


@pytest.mark.parametrize("name", PLANTS)
def test_a_plant_applies_and_names_a_test(name: str) -> None:
    text, tests = PLANTS[name].read_text(encoding="utf-8"), named_by(name)
    assert len(text.splitlines()) <= MOST_LINES and tests
    applied = git("apply", "--check", str(PLANTS[name]), where=PROJECT)
    assert applied.returncode == 0, applied.stderr
    assert not re.search(r"^\+\+\+ b/tests/", text, re.MULTILINE)
    for file, _, test in (one.partition("::") for one in tests):
        tree = ast.parse((PROJECT / file).read_text(encoding="utf-8"))
        functions = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
        assert test.partition("[")[0] in functions, f"{file} has no {test}"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's files in another folder."""
    root = tmp_path_factory.mktemp("plants") / "project"
    listed = git("ls-files", "--cached", "--others", "--exclude-standard", where=PROJECT)
    assert listed.returncode == 0, listed.stderr
    for file in listed.stdout.splitlines():
        if (PROJECT / file).is_file():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / file, root / file)
    for folder in (".venv", ".tools"):
        if (PROJECT / folder).exists():
            (root / folder).symlink_to((PROJECT / folder).resolve())
    return root


def results(root: Path, tests: Sequence[str]) -> Results:
    """Run these tests of the project in `root`, and return their results."""
    report = root.parent / "results.xml"
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [f"--junitxml={report}", "-o", "junit_family=xunit1"]  # which names the files
    own = {"PYTHONPATH": str(root), STORE: str(root.parent / "kept")}
    done = ended([sys.executable, *command, *tests], cwd=root, env=os.environ | own)
    assert done.returncode in (0, 1), f"{done.stdout}\n{done.stderr}"
    cases = ElementTree.parse(report).iter("testcase")  # noqa: S314 (pytest's own)
    return {f"{case.attrib['file']}::{case.attrib['name']}": _result(case) for case in cases}


def _result(case: ElementTree.Element) -> tuple[str, str]:
    for kind in ("error", "failure", "skipped"):
        if (found := case.find(kind)) is not None:
            return kind, found.attrib.get("message", "")
    return "passed", ""


@pytest.fixture(scope="module")
def untouched(copy: Path, request: pytest.FixtureRequest) -> Results:
    """Return the results of the named tests without any plant."""
    items = [item for item in request.session.items if "planted" in item.fixturenames]
    chosen = [item.callspec.params["name"] for item in items]
    return results(copy, sorted({test for name in chosen for test in named_by(name)}))


@pytest.fixture
def planted(name: str, copy: Path, untouched: Results) -> Iterator[Path]:
    """The copy with the plant in it."""
    assert git("apply", str(PLANTS[name]), where=copy).returncode == 0
    yield copy
    assert git("apply", "--reverse", str(PLANTS[name]), where=copy).returncode == 0


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", PLANTS)
def test_a_plant_is_found(name: str, planted: Path, untouched: Results) -> None:
    for test in named_by(name):
        before = [kind for one, (kind, _) in untouched.items() if one == test or one.startswith(f"{test}[")]
        assert before and set(before) == {"passed"}, f"{test} without the plant: {before}"
        after = results(planted, [test])
        found = [words for kind, words in after.values() if kind == "failure" and FOUND.match(words)]
        assert found, f"{test}: {after}"
