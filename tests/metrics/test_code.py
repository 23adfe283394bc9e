"""code: an answer's code is found however it is fenced, and a row's tests are complete, hold for the
reference and fail without an answer.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from needed import need

from pipeline.metrics import code
from pipeline.metrics.scorers import parse

FENCED = """Here you are:

```python
import math

def area(r):
    return math.pi * r * r
```

It is used like this:

```python
print(area(2))
```
"""
LISTED = """1. Write it:

   ```python
   def f(x):
       return x
   ```
2. Use it.
"""
ADD = "def add(a, b):\n    return a + b"
LESS, INTS = ADD.replace("+", "-"), "add = int.__add__\nx = total = seen = None"


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> Iterator[None]:
    yield
    code.check_tests.cache_clear()


def run_here(answer: str, tests: str) -> str:
    """`run_tests` without the sandbox's walls, by the guard's own function: these answers are ours."""
    from pipeline.metrics.guard import run

    return run(answer, tests)


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "run_tests", run_here)


RIGHT, WRONG, UNREADABLE = (1.0, True), (0.0, True), (0.0, False)


def score(reference: str, answer: str, prompt: str = "?") -> tuple[float | None, bool]:
    """Points, and whether the answer could be read."""
    found = parse("code").measure(reference, answer, {"id": "r1", "prompt": prompt})
    return found.points, found.valid


@pytest.mark.parametrize(
    ("tests", "answer", "expected"),
    [
        ("assert area(1) > 3", FENCED, RIGHT),
        ("assert area(1) > 3", FENCED.replace("\n", "\r\n"), RIGHT),
        ("assert f(1) == 1", LISTED, RIGHT),
        (
            "assert 'y' in vars(solution) and 'x' not in vars(solution)",
            "```\nx = 1\n```\n```py\ny = 2\n```",
            RIGHT,
        ),
        ("assert solution.x == 1", "```\nx = 1\n```", RIGHT),
        ("assert solution.y == 2", "```js\nx = 1\n```\n```python\ny = 2\n```", RIGHT),
        ("assert solution.x == '```'", "~~~python\nx = '```'\n~~~", RIGHT),
        ("assert solution.x == 1", "```python\nx = 1", RIGHT),  # cut off by the limit of tokens
        ("assert solution.x == 1", "x = 1", RIGHT),
        ("assert solution.x == 2", "- ```python\n  x = 1\n    \n\n  if x:\n      x = 2\n  ```", RIGHT),
        ("assert solution.x == 1", "  ```python\nx = 1\n  ```", RIGHT),
        ("assert solution.x == 1", "\t```python\n\tx = 1\n\t```\nEnd", RIGHT),
        ("assert solution.x == 1", "It is x.", UNREADABLE),
    ],
)
@pytest.mark.usefixtures("_here")
def test_the_code_of_an_answer_is_found_however_it_is_fenced(
    tests: str, answer: str, expected: tuple[float, bool]
) -> None:
    assert score(f"import solution\n{tests}", answer) == expected


BLOCKS = """
```python
import math
def f(x): return x
y = 3
assert f(1) == 1
def test_f():
    assert f(2) == 2
def test_with(fixture): pass
```
```python
assert f(3) == 3
```
"""


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("def f(x): return x", RIGHT),
        ("def f(x): return 1", WRONG),
        ("def f(x): return min(x, 2)", WRONG),
        ("def f(x): return x if x != 2 else 1", WRONG),
    ],
)
@pytest.mark.usefixtures("_here")
def test_all_tests_of_a_row_must_hold(answer: str, expected: tuple[float, bool]) -> None:
    assert score(BLOCKS, answer) == expected


@pytest.mark.parametrize(
    "reference",
    ["def f(): pass", "no Python", "```python\nassert (\n```", "", "```js\nassert (x)\n```"],
)
def test_a_row_without_a_test_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        score(reference, "x = 1")


@pytest.mark.parametrize(
    "tests",
    [
        "assert add(1, 2) == 3",
        "x = add(1, 2)\nassert x == 3\nx = add(x, 1)\nassert x == 4",
        "total = 0\nfor n in range(3):\n    total += add(n, 1)\nassert total == 6",
        "CASES = [(1, 2, 3)]\ndef test_all():\n    for a, b, c in CASES:\n        assert add(a, b) == c",
        "for a, b, c in [(1, 2, 3)]:\n    assert add(a, b) == c",
        "seen = []\nseen.append(add(1, 2))\nassert seen == [3]",
        "from solution import add\nassert add(1, 2) == 3",
        "from __main__ import add as plus\nassert plus(1, 2) == 3",
        "from .solution import *\nassert add(1, 2) == 3",
        "import solution\nassert solution.add(1, 2) == 3",
        "import my.solution as s\ndef test(): assert s.add(1, 2) == 3",
        "def test():\n    from solution import add\n    assert add(1, 2) == 3",
        "from __future__ import annotations\nimport math\nassert add(math.floor(1.5), int(2.5)) == 3",
        "try:\n    add('a', 1)\nexcept TypeError:\n    pass\nelse:\n    assert False\nassert add(1, 2) == 3",
    ],
)
@pytest.mark.usefixtures("_here")
def test_right_answers_pass_and_wrong_ones_fail(tests: str) -> None:
    helped = f"WIDE = 2\ndef wide(x): return add(x, WIDE)\n{tests}\nassert wide(1) == 3"
    # tests alone, with a solution, with a helper
    for reference in (tests, f"```python\n{ADD}\n```\n\n```python\n{tests}\n```", helped):
        assert score(reference, f"```python\n{ADD}\n```") == RIGHT
        assert score(reference, INTS) in (RIGHT, WRONG)
        assert score(reference, LESS) == WRONG
        assert score(reference, ADD.replace("add", "sum_of")) == WRONG
        assert score(reference, "Sure!") == UNREADABLE
        assert score(reference, " ") == UNREADABLE


@pytest.mark.usefixtures("_here")
def test_the_references_own_values_stay_out_of_the_answers_way() -> None:
    reference = "memo = {}\ndef f(n):\n    memo[n] = n\n    return n\nassert f(1) == 1"
    answer = "memo = []\ndef f(n):\n    memo.append(n)\n    return n"
    assert score(reference, answer) == RIGHT


@pytest.mark.usefixtures("_here")
def test_what_a_reference_does_beside_its_tests_does_not_run() -> None:
    reference = "STEP = 1\ndef f(n): return n + STEP\nn = int(input())\nprint(f(n))\nassert f(1) == 2"
    answer = "def f(n): return n + 1"
    assert score(reference, answer) == RIGHT


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    "deep", ["+".join("1" * 950), "(" * 150 + "1" + ")" * 150, "[" * 90 + "]" * 90, "not " * 900 + "1"]
)
def test_a_reference_of_any_depth_is_scored_or_a_value_error(deep: str) -> None:
    same = "def f(n): return n"
    for reference in (
        f"x = {deep}\nassert f(1) == 2",
        f"def f(n):\n    x = {deep}\n    return n\nassert f(1) == 1",
        "nonlocal x\nassert f()",
    ):
        with contextlib.suppress(ValueError):
            assert score(reference, same) in (RIGHT, WRONG)


@pytest.mark.usefixtures("_here")
def test_names_may_come_from_a_star() -> None:
    reference = f"from math import *\n{ADD}\nassert floor(add(1.5, 2)) == 3"
    assert score(reference, ADD) == RIGHT
    assert score(reference, LESS) == WRONG


@pytest.mark.usefixtures("_here")
def test_the_question_may_hold_the_tests() -> None:
    question = "Write f.\n```python\ndef f(x):\n    ...\n\nassert f(2) == 4\n```"
    doubles, same = "def f(x): return 2 * x", "def f(x): return x"
    for reference in ("It doubles x.", doubles):
        assert score(reference, doubles, question) == RIGHT
        assert score(reference, same, question) == WRONG
    with pytest.raises(ValueError, match="own code fails"):
        score(same, doubles, question)


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    "tests",
    ["assert True", "def f(x): return x\ndef test_f(): f(1)\nassert 1", "f = lambda x: x\nassert f(1) == 1"],
)
def test_tests_that_no_answer_can_fail_are_the_rows_fault(tests: str) -> None:
    with pytest.raises(ValueError, match="its tests pass without any answer"):
        score(tests if "test_f" not in tests else tests.replace("f(1)", "None"), "x = 1")


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    "reference",
    ["def f(x): return x\nassert f(1) == 2", "def f(x): return List[x]\ndef test_f(): assert f(1)"],
)
def test_a_reference_that_fails_its_own_tests_is_the_rows_fault(reference: str) -> None:
    with pytest.raises(ValueError, match="the reference's own code fails its tests"):
        score(reference, "def f(x): return x")


def test_a_rows_tests_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        code, "run_tests", lambda answer, tests: asked.append((answer, tests)) or run_here(answer, tests)
    )
    tests = "assert add(1, 2) == 3"
    for _ in range(3):
        assert score(f"{ADD}\n{tests}", ADD) == RIGHT
    assert asked == [("", tests), (ADD, tests)] + 3 * [(ADD, tests)]


def test_an_answer_runs_in_the_sandbox() -> None:
    from pipeline.core.errors import ToolError

    tests = "from solution import add\nassert add(1, 2) == 3"
    try:
        assert score(tests, ADD) == RIGHT
    except ToolError as error:
        pytest.skip(need(f"a sandbox ({error.id})"))
