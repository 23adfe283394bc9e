"""The scorer `code`: the answer's Python runs, in a sandbox, against the tests of its row.

The answer's code is its first block marked as Python, else its first block, else all of it. A row's tests are what the reference's
Python says at its top level with `assert`, and its functions `test…` without parameters, which are called; its imports come with
them. A reference without any leaves the word to the question, whose blocks are read the same way.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

from pipeline.scoring.sandbox import run_tests
from pipeline.scoring.score import UNREADABLE, Score

BLOCK = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+.-]*)[^\n]*\n(?P<code>.*?)(?:^[ \t]*(?P=fence)[ \t]*$|\Z)", re.DOTALL | re.MULTILINE
)
PYTHON = ("python", "python3", "py", "py3")


def passes(reference: str, answer: str, row: Mapping[str, Any]) -> Score:
    """1 where every test of the row holds, else 0; valid where the answer's code is Python. Raises `ToolError` without a sandbox."""
    tests = asserts_in(reference) or asserts_in(str(row.get("prompt") or ""))
    if not tests:
        raise ValueError("neither its reference nor its question has an assert or a function test… in Python")
    if not answer.strip():
        return UNREADABLE
    outcome = run_tests(code_in(answer), tests)
    return Score(float(outcome == "passed"), outcome != "unreadable")


def code_in(text: str) -> str:
    """The code of an answer: its first block marked as Python, else its first block, else the whole text."""
    blocks = [(match["language"].lower(), match["code"]) for match in BLOCK.finditer(text)]
    marked = [code for language, code in blocks if language in PYTHON]
    return next(iter([*marked, *(code for _, code in blocks), text]))


def asserts_in(text: str) -> str:
    """The imports, asserts and calls of test functions in a text's Python blocks (in the text itself where it has no block); "" for none."""
    blocks = [match["code"] for match in BLOCK.finditer(text) if match["language"].lower() in (*PYTHON, "")]
    return "\n".join(filter(None, map(_tests, blocks or [text])))


def _tests(code: str) -> str:
    try:
        statements = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    asserts = [one for one in statements if isinstance(one, ast.Assert)]
    functions = [one for one in statements if isinstance(one, ast.FunctionDef) and one.name.startswith("test") and not _parameters(one)]
    imports = [one for one in statements if isinstance(one, ast.Import | ast.ImportFrom)]
    if not asserts and not functions:
        return ""
    return "\n".join([*map(ast.unparse, [*imports, *functions, *asserts]), *(f"{one.name}()" for one in functions)])


def _parameters(function: ast.FunctionDef) -> bool:
    return any(vars(function.args)[kind] for kind in ("posonlyargs", "args", "kwonlyargs"))
