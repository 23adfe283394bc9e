"""What a file of the package means, whatever its comments and layout: a hash of its syntax tree, and names
that may lead to another file.
"""

import ast
import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

# fields of a syntax tree that mean nothing, or nothing in every version of Python
IGNORED = {"ctx", "kind", "type_comment", "type_ignores"}
NAME = re.compile(r"[\w./-]{1,100}")  # a text that may name a module or a data file
QUOTED = re.compile(rf"""["']({NAME.pattern})["']""")
# what declares a key of params.yaml: its last text is the comment above the key, and no code
DESCRIBED = {f"pipeline.config.sections.values.{name}": name for name in ("key", "group")}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Source(NamedTuple):
    """A file of the package: the hash of what it means, and every name in it that may lead to another
    file.
    """

    digest: str
    names: list[str]


def read_source(content: bytes, *, is_python: bool) -> Source:
    """What a file means and names. One that is not Python, though it should be, is taken as it stands:
    whoever imports it will say so.
    """
    if is_python:
        with suppress(SyntaxError, ValueError):
            return _read_module(ast.parse(content))
    return Source(
        content_hash(content), sorted(set(QUOTED.findall(content.decode("utf-8", errors="replace"))))
    )


def _read_module(tree: ast.Module) -> Source:
    described = {DESCRIBED[name] for name in _imported(tree) if name in DESCRIBED}
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in described:
            del node.args[1:]
        elif isinstance(node, ast.JoinedStr):
            # Python 3.12 has empty texts in nested formats
            node.values = [part for part in node.values if getattr(part, "value", None) != ""]
    names = {name for node in ast.walk(tree) for name in _names(node)}
    return Source(content_hash(_written(tree).encode("utf-8", errors="surrogatepass")), sorted(names))


def _written(node: object) -> str:
    """A syntax tree as text, the same for every version of Python (`ast.dump` differs in empty fields)."""
    if isinstance(node, list):
        return f"[{''.join(map(_written, node))}]"
    if not isinstance(node, ast.AST):
        return f"{node!r},"
    fields = [(name, getattr(node, name, None)) for name in node._fields if name not in IGNORED]
    inner = "".join(f"{name}={_written(value)}" for name, value in fields if value not in (None, []))
    return f"{type(node).__name__}({inner})"


def _imported(tree: ast.Module) -> set[str]:
    """What a module imports from others by name, at its top."""
    return {
        f"{node.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _names(node: ast.AST) -> Iterator[str]:
    """What `node` imports, or what its text may name; all imports of the project are absolute (a test sees to
    that).
    """
    match node:
        case ast.Import():
            yield from (alias.name for alias in node.names)
        case ast.ImportFrom():
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        case ast.Constant(value=str(text)) if NAME.fullmatch(text):
            yield text


def content_hash(content: bytes) -> str:
    """A short hash of bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
