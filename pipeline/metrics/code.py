"""The scorer `code`: the answer's Python runs, in a sandbox, against the tests of its row.

The answer's code is its first block marked as Python, else its first block, else all of it. A row's tests are
what the reference's Python says at its top level with `assert`, and its functions `test…` without parameters,
which are called. With them comes what they need: imports (a module that isn't installed, as in `from solution
import f`, is the answer), and values that they look up. Functions and classes are the answer's to give; but
where the reference lacks what its tests call, it is tests alone, and all of it runs. A reference without any
test leaves the word to the question, whose blocks are read the same way.
"""

import ast
import builtins
import re
import symtable
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from pipeline.metrics.sandbox import run_tests
from pipeline.metrics.score import UNREADABLE, Score

BLOCK = re.compile(
    r"^(?P<indent>[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?)(?P<fence>`{3,}|~{3,})[ "
    r"\t]*(?P<language>[\w+.-]*)[^\n]*\n"
    r"(?P<code>.*?)(?:^[ \t]*(?P=fence)[ \t]*$|\Z)",
    re.DOTALL | re.MULTILINE,
)
PYTHON = ("python", "python3", "py", "py3")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
ANSWER = "answer"  # the guard's name for the module of the answer


def passes(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
    """1 where every test of the row holds, else 0; valid where the answer's code is Python.

    Raises `ValueError` if the row has no tests, or tests that `check_tests` refuses; `ToolError` without a
    sandbox.
    """
    tests = asserts_in(reference) or asserts_in(str(row.get("prompt") or ""))
    if not tests:
        raise ValueError("neither its reference nor its question has an assert or a function test… in Python")
    check_tests(reference, tests)
    if not answer.strip():
        return UNREADABLE
    outcome = run_tests(code_in(answer), tests)
    return Score(float(outcome == "passed"), outcome != "unreadable")


def code_in(text: str) -> str:
    """The code of an answer: its first block marked as Python, else its first block, else the entire text."""
    blocks = _blocks(text)
    marked = [code for language, code in blocks if language in PYTHON]
    return next(iter([*marked, *(code for _, code in blocks), text]))


def asserts_in(text: str) -> str:
    """The tests in a text's Python blocks (in the text itself where it has no block), with what they need; ""
    for none.
    """
    try:
        return _source(_tests(_statements(text)))
    except (RecursionError, MemoryError):  # deeper than Python goes
        return ""


@cache
def check_tests(reference: str, tests: str) -> None:
    """Raise `ValueError` for tests that would mark every answer right, or wrong: they pass on nothing, or
    fail on the reference's own code.
    """
    if run_tests("", tests) == "passed":
        raise ValueError(
            "its tests pass without any answer: let them call what the answer defines, and define it with "
            "def or class alone"
        )
    statements, needed = _statements(reference), _needed(ast.parse(tests).body)
    solution = _with_needed([one for one in statements if isinstance(one, DEFINITIONS)], statements)
    if needed and needed <= _given(solution) and run_tests(_source(solution), tests) != "passed":
        raise ValueError("the reference's own code fails its tests")


def _blocks(text: str) -> list[tuple[str, str]]:
    """(language, code) of each fenced block, without the indentation of its fence."""
    found = BLOCK.finditer(text.replace("\r\n", "\n"))
    return [
        (
            one["language"].lower(),
            re.sub(rf"^[ \t]{{0,{len(one['indent'])}}}", "", one["code"], flags=re.MULTILINE),
        )
        for one in found
    ]


def _statements(text: str) -> list[ast.stmt]:
    """The top level of all Python blocks, one after the other."""
    codes = [code for language, code in _blocks(text) if language in (*PYTHON, "")] or [text]
    statements: list[ast.stmt] = []
    for code in codes:
        try:
            tree = _AnswersModule().visit(ast.parse(code))
            symtable.symtable(ast.unparse(tree), "tests", "exec")
            statements += tree.body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    # a file's first line or none
    return [one for one in statements if not (isinstance(one, ast.ImportFrom) and one.module == "__future__")]


def _tests(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Those statements that are tests, what they need, and calls of the test functions."""
    tests = [one for one in statements if _is_test(one)]
    if not tests:
        return []
    kept = _with_needed(tests, statements)
    if _needed(kept) - _given(statements):
        kept = statements
    calls = [f"{one.name}()" for one in tests if isinstance(one, ast.FunctionDef)]
    return kept + ast.parse("\n".join(calls)).body


def _with_needed(wanted: list[ast.stmt], statements: list[ast.stmt]) -> list[ast.stmt]:
    """The wanted ones of `statements` with all imports, with what sets the names that they look up, and what
    changes those.
    """
    kept = wanted + [one for one in statements if isinstance(one, ast.Import | ast.ImportFrom)]
    values = [one for one in statements if one not in kept and not isinstance(one, DEFINITIONS)]
    looked_up, variables = _names(kept)[1], set[str]()
    while found := [
        one
        for one in values
        if one not in kept and (_names([one])[0] & looked_up or _names([one])[1] & variables)
    ]:
        kept += found
        variables |= _names(found)[0]
        looked_up |= _names(found)[1]
    return [one for one in statements if one in kept]


def _is_test(one: ast.stmt) -> bool:
    if isinstance(one, ast.FunctionDef):
        return one.name.startswith("test") and not any(
            vars(one.args)[kind] for kind in ("posonlyargs", "args", "kwonlyargs")
        )
    return not isinstance(one, DEFINITIONS) and any(isinstance(part, ast.Assert) for part in ast.walk(one))


def _needed(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that these statements leave to the answer; none where an `import *` may give them."""
    if any(
        one.names[0].name == "*" and one.module != ANSWER
        for one in statements
        if isinstance(one, ast.ImportFrom)
    ):
        return set()
    bound, looked_up = _names(statements)
    return looked_up - bound - set(dir(builtins)) | _from_answer(statements)


def _names(statements: Sequence[ast.stmt]) -> tuple[set[str], set[str]]:
    """(names that the statements bind at their top level, names looked up there from anywhere)."""
    top = symtable.symtable(_source(statements), "tests", "exec")
    looked_up, tables = set[str](), [top]
    for table in tables:
        tables += table.get_children()
        looked_up |= {
            one.get_name()
            for one in table.get_symbols()
            if one.is_referenced() and (table is top or one.is_global())
        }
    return {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()}, looked_up


def _given(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that the statements define themselves."""
    return _names(
        [one for one in statements if not (isinstance(one, ast.ImportFrom) and one.module == ANSWER)]
    )[0]


def _from_answer(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that are imported from the answer's module, or looked up in it."""
    parts = [part for one in statements for part in ast.walk(one)]
    named = {
        alias.name
        for one in parts
        if isinstance(one, ast.ImportFrom) and one.module == ANSWER
        for alias in one.names
    } - {"*"}
    modules = {
        alias.asname
        for one in parts
        if isinstance(one, ast.Import)
        for alias in one.names
        if alias.name == ANSWER
    }
    return named | {
        one.attr
        for one in parts
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id in modules
    }


def _source(statements: Sequence[ast.stmt]) -> str:
    return "\n".join(map(ast.unparse, statements))


class _AnswersModule(ast.NodeTransformer):
    """`from solution import f`: a module that isn't installed is the answer's."""

    def visit_Import(self, node: ast.Import) -> ast.Import:
        names = [
            one if _installed(one.name) else ast.alias(ANSWER, one.asname or one.name.partition(".")[0])
            for one in node.names
        ]
        return ast.Import(names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        return (
            node
            if node.module and not node.level and _installed(node.module)
            else ast.ImportFrom(ANSWER, node.names, 0)
        )


@cache
def _installed(module: str) -> bool:
    name = module.partition(".")[0]
    try:
        return name != "__main__" and find_spec(name) is not None
    except ValueError:  # a module without a file
        return False
