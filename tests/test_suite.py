"""What the tests name and what they cost (`benchmarks/suite.py`)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.suite import counts_by_name, durations, named

# how many no test names; lower a number when you name one
UNNAMED = {"keys": 0, "verbs": 0, "error ids": 60}
TESTS = """
LIMITS = {"max_kld": 1}
def run(*words): return invoke("data", *words)
def test_one(): assert judge(LIMITS, beta=2) == "train.r: 0 (Q-BASE-001)"
def test_two(): run("schema"); call(["python", "-m", "pipeline.cli", "plan"])
"""
REPORT = """<testsuites><testsuite name="abc123" timestamp="2026-11-25T21:31:59+00:00" time="90" tests="2"
failures="0" errors="0" skipped="1"><testcase name="test_a" file="tests/test_x.py" time="0.26"/>
<testcase name="test_b" file="tests/test_x.py" time="61.04"/></testsuite></testsuites>"""


def test_no_key_verb_or_error_id_comes_without_a_test() -> None:
    unnamed = {kind: [name for name in names if not names[name]] for kind, names in counts_by_name().items()}
    assert not {kind: names for kind, names in unnamed.items() if len(names) > UNNAMED[kind]}


def test_a_test_names_what_it_and_its_helpers_say(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    one, two = named(tmp_path / "test_some.py")
    assert {"max_kld", "beta", "train.r", "Q-BASE-001"} <= one
    assert {"quench data", "schema", "quench plan"} <= two
    assert not one & {"schema", "quench data", "quench plan"} and not two & {"max_kld", "beta"}


def test_the_slowest_come_first(tmp_path: Path) -> None:
    (tmp_path / "test.xml").write_text(REPORT)
    found = durations(tmp_path / "test.xml")
    assert (found["seen"], found["commit"], found["minutes"]) == ("2026-11-25T21:31", "abc123", 1.5)
    assert list(found["slowest"].items()) == [
        ("tests/test_x.py::test_b", 61.0),
        ("tests/test_x.py::test_a", 0.3),
    ]
