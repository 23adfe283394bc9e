"""The scorer `code`: the answer's Python runs, in a sandbox, against the tests of its row.

The answer's code is its first block marked as Python, otherwise its first block, otherwise all of it. A row's
tests are the `assert` statements at the top level of the reference's Python, and its functions `test…`
without parameters, which are called. They come with what they need: imports (a module that isn't installed,
as in `from solution import f`, is the answer), and values that they look up. Functions and classes must come
from the answer. But if the reference lacks what its tests call, it consists only of tests, and all of it
runs. If a reference has no test at all, the question's blocks are read the same way.
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
    """Return 1 if every test of the row passes, otherwise 0; valid if the answer's code is Python.

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
    """Return the code of an answer: its first block marked as Python, otherwise its first block, otherwise
    the entire text.
    """
    blocks = _blocks(text)
    marked = [code for language, code in blocks if language in PYTHON]
    return next(iter([*marked, *(code for _, code in blocks), text]))


def asserts_in(text: str) -> str:
    """Return the tests in a text's Python blocks (without: in the text) and their needs; "" for none."""
    try:
        return _source(_tests(_statements(text)))
    except (RecursionError, MemoryError):  # deeper than Python's parser allows
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
    statements = _statements(reference)
    needed = _needed(ast.parse(tests).body)
    solution = _with_needed([node for node in statements if isinstance(node, DEFINITIONS)], statements)
    if needed and needed <= _defined(solution) and run_tests(_source(solution), tests) != "passed":
        raise ValueError("the reference's own code fails its tests")


def _blocks(text: str) -> list[tuple[str, str]]:
    """Return (language, code) of each fenced block, without the indentation of its fence."""
    matches = BLOCK.finditer(text.replace("\r\n", "\n"))
    return [
        (
            match["language"].lower(),
            re.sub(rf"^[ \t]{{0,{len(match['indent'])}}}", "", match["code"], flags=re.MULTILINE),
        )
        for match in matches
    ]


def _statements(text: str) -> list[ast.stmt]:
    """Return the top level of all Python blocks, one after the other."""
    codes = [code for language, code in _blocks(text) if language in (*PYTHON, "")] or [text]
    statements: list[ast.stmt] = []
    for code in codes:
        try:
            tree = _AnswersModule().visit(ast.parse(code))
            symtable.symtable(ast.unparse(tree), "tests", "exec")
            statements += tree.body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    # Only the first line of a file may import from `__future__`.
    return [
        node for node in statements if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
    ]


def _tests(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements that are tests, what they need, and calls of the test functions."""
    tests = [node for node in statements if _is_test(node)]
    if not tests:
        return []
    kept = _with_needed(tests, statements)
    if _needed(kept) - _defined(statements):
        kept = statements
    calls = [f"{test.name}()" for test in tests if isinstance(test, ast.FunctionDef)]
    return kept + ast.parse("\n".join(calls)).body


def _with_needed(wanted: list[ast.stmt], statements: list[ast.stmt]) -> list[ast.stmt]:
    """Return the `wanted` among `statements`, with all imports and the statements that set or change the
    names they look up.
    """
    kept = wanted + [node for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]
    values = [node for node in statements if node not in kept and not isinstance(node, DEFINITIONS)]
    looked_up = _names(kept)[1]
    variables = set[str]()
    while more := [
        node
        for node in values
        if node not in kept and (_names([node])[0] & looked_up or _names([node])[1] & variables)
    ]:
        kept += more
        variables |= _names(more)[0]
        looked_up |= _names(more)[1]
    return [node for node in statements if node in kept]


def _is_test(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name.startswith("test") and not any(
            vars(node.args)[kind] for kind in ("posonlyargs", "args", "kwonlyargs")
        )
    return not isinstance(node, DEFINITIONS) and any(isinstance(part, ast.Assert) for part in ast.walk(node))


def _needed(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the names that these statements leave to the answer; none if an `import *` may define them."""
    if any(
        node.names[0].name == "*" and node.module != ANSWER
        for node in statements
        if isinstance(node, ast.ImportFrom)
    ):
        return set()
    bound, looked_up = _names(statements)
    return looked_up - bound - set(dir(builtins)) | _from_answer(statements)


def _names(statements: Sequence[ast.stmt]) -> tuple[set[str], set[str]]:
    """Return (names that the statements bind at their top level, names looked up there from anywhere)."""
    top = symtable.symtable(_source(statements), "tests", "exec")
    looked_up = set[str]()
    tables = [top]
    for table in tables:
        tables += table.get_children()
        looked_up |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (table is top or symbol.is_global())
        }
    return {
        symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()
    }, looked_up


def _defined(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the names that the statements define themselves."""
    return _names(
        [node for node in statements if not (isinstance(node, ast.ImportFrom) and node.module == ANSWER)]
    )[0]


def _from_answer(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the names that are imported from the answer's module, or looked up in it."""
    parts = [part for node in statements for part in ast.walk(node)]
    imported = {
        alias.name
        for part in parts
        if isinstance(part, ast.ImportFrom) and part.module == ANSWER
        for alias in part.names
    } - {"*"}
    modules = {
        alias.asname
        for part in parts
        if isinstance(part, ast.Import)
        for alias in part.names
        if alias.name == ANSWER
    }
    return imported | {
        part.attr
        for part in parts
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in modules
    }


def _source(statements: Sequence[ast.stmt]) -> str:
    return "\n".join(map(ast.unparse, statements))


class _AnswersModule(ast.NodeTransformer):
    """Rewriter of `from solution import f`: a module that isn't installed is the answer's."""

    def visit_Import(self, node: ast.Import) -> ast.Import:
        names = [
            name if _installed(name.name) else ast.alias(ANSWER, name.asname or name.name.partition(".")[0])
            for name in node.names
        ]
        return ast.Import(names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if node.module and not node.level and _installed(node.module):
            return node
        return ast.ImportFrom(ANSWER, node.names, 0)


@cache
def _installed(module: str) -> bool:
    name = module.partition(".")[0]
    try:
        return name != "__main__" and find_spec(name) is not None
    except ValueError:  # a module without a file
        return False
