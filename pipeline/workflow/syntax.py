"""What a file of the package means, whatever its comments and layout: a hash of its syntax tree, and names
that may lead to another file.
"""

import ast
import hashlib
import re
from contextlib import suppress
from typing import Any, NamedTuple

IGNORED = {
    "ctx",
    "kind",
    "type_comment",
    "type_ignores",
}  # fields of a syntax tree that mean nothing, or nothing in every version of Python
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
    parts: list[str] = []
    names: set[str] = set()
    described = {DESCRIBED[name] for name in _imported(tree) if name in DESCRIBED}

    def add(node: object) -> None:
        if isinstance(node, list):
            parts.append("[")
            for item in node:
                add(item)
            parts.append("]")
            return
        if not isinstance(node, ast.AST):
            parts.append(f"{node!r},")
            return
        _name(node, names)
        parts.append(f"{type(node).__name__}(")
        for field in node._fields:
            value: Any = getattr(node, field, None)
            if (
                field == "body"
                and isinstance(node, DOCUMENTED)
                and ast.get_docstring(node, clean=False) is not None
            ):
                value = value[1:]
            elif (
                field == "args"
                and isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in described
            ):
                value = value[:1]
            elif isinstance(node, ast.JoinedStr):
                # Python 3.12 has empty texts in nested formats
                value = [part for part in value if getattr(part, "value", None) != ""]
            # versions of Python differ in which empty fields there are
            if value is None or value == [] or field in IGNORED:
                continue
            parts.append(f"{field}=")
            add(value)
        parts.append(")")

    add(tree)
    return Source(content_hash("".join(parts).encode("utf-8", errors="surrogatepass")), sorted(names))


def _imported(tree: ast.Module) -> set[str]:
    """What a module imports from others by name, at its top."""
    return {
        f"{node.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _name(node: ast.AST, names: set[str]) -> None:
    """Add what `node` imports, or what its text may name; all imports of the project are absolute (a test
    sees to that).
    """
    if isinstance(node, ast.Import):
        names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        names.update(f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
        names.add(node.value)


def content_hash(content: bytes) -> str:
    """A short hash of bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
