"""The current files of the package: each module's definitions, with a hash of what they mean and the names
that they use. A file that was seen before is not parsed again.
"""

import ast
import inspect
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pipeline.core.places import RESOURCES, own_folder
from pipeline.workflow import syntax
from pipeline.workflow.syntax import (
    ALL,
    NAME,
    Part,
    Reader,
    content_hash,
    imported_in,
    is_ours,
    take_out_comments,
    tree_hash,
)

# Parsed files by content; may be deleted at any time.
MEMORY = own_folder() / ".quench" / "syntax.json"
LEFTOVERS = ("~", ".orig", ".rej", ".bak", ".tmp", ".swp")  # suffixes of files that editors and merges leave
QUOTED = re.compile(rf"""["']({NAME.pattern})["']""")
OF_ALL = f"{ALL}."  # prefix of the members of the class of all settings
BODY = ""  # the part of a module that runs when it is imported
PROGRAM = "__main__"  # the part of a module that runs when it is started


class Source(NamedTuple):
    """A file: the hash of its meaning, and every text in it that may name another file.

    For a module also its parts by name, the origins of the project's names that it imports, and the modules
    that are imported with it.
    """

    digest: str
    texts: list[str]
    is_module: bool
    parts: dict[str, Part]
    imports: dict[str, str]
    loads: list[str]


def read_source(content: bytes, *, is_python: bool) -> Source:
    """Return what a file means and names.

    A file with invalid Python is read as a text, because importing it will fail.
    """
    if is_python:
        with suppress(SyntaxError, ValueError):
            tree = ast.parse(content)
            parts, imports, loads = module_of(tree)
            texts = {text for part in parts.values() for text in part.texts}
            return Source(tree_hash(tree), sorted(texts), True, parts, imports, loads)
    texts = set(QUOTED.findall(content.decode("utf-8", errors="replace")))
    return Source(content_hash(content), sorted(texts), is_module=False, parts={}, imports={}, loads=[])


def read_sources(folder: Path, memory: Path) -> dict[str, Source]:
    """Return the files below `folder`, read. `memory` contains those that were seen before."""
    readers = (inspect.getsource(module) for module in (sys.modules[__name__], syntax))
    version = content_hash("".join(readers).encode())
    remembered = _recall(memory, version)
    sources: dict[str, Source] = {}
    seen: dict[str, Source] = {}
    for path in _files(folder):
        try:
            content = (folder / path).read_bytes()
        except FileNotFoundError:
            continue  # An editor is replacing it, or it is a dead link.
        name = f"{content_hash(content)}{Path(path).suffix}"
        seen[name] = remembered.get(name) or read_source(content, is_python=path.endswith(".py"))
        sources[path] = seen[name]
    if seen.keys() != remembered.keys():
        with suppress(OSError):  # A file that is not remembered is parsed again.
            write_whole(memory, json.dumps({"version": version, "files": seen}))
    return sources


def _files(folder: Path) -> list[str]:
    """Return all files below `folder`, relative to it.

    Left out are caches, hidden files, what editors leave next to a file, and what only a wheel contains, so
    that its keys are those of a checkout.
    """
    files: list[str] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if name != "__pycache__" and not name.startswith(".") and Path(place, name) != RESOURCES
        ]
        names = [name for name in names if not name.startswith((".", "#")) and not name.endswith(LEFTOVERS)]
        files += [Path(place, name).relative_to(folder).as_posix() for name in names]
    return sorted(files)


def _recall(memory: Path, version: str) -> dict[str, Source]:
    try:
        kept = json.loads(memory.read_bytes())
        files = kept["files"] if kept["version"] == version else {}
        sources = {name: Source(*source) for name, source in files.items()}
        return {
            name: source._replace(parts={part: Part(*fields) for part, fields in source.parts.items()})
            for name, source in sources.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def write_whole(file: Path, text: str) -> None:
    """Write `file` in one rename, by a unique temporary name.

    Jobs that run side by side may do so at once.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{os.getpid()}.writing")
    aside.write_text(text, encoding="utf-8")
    aside.replace(file)


def module_of(tree: ast.Module) -> tuple[dict[str, Part], dict[str, str], list[str]]:
    """Return the parts, imports and loads of a module (`Source`). Comments are removed from `tree`."""
    imports = dict(imported_in(tree.body))
    take_out_comments(tree, imports)
    nodes: dict[str, list[ast.AST]] = {}
    for statement in tree.body:
        for name, node in _definitions(statement):
            nodes.setdefault(name, []).append(node)
    scope = imports | {name: f".{name}" for name in nodes if "." not in name}
    loaded = dict(imported_in(tree.body, checking=False)).values()
    return (
        {name: Reader(scope, of_settings=name.startswith(OF_ALL)).part(part) for name, part in nodes.items()},
        {name: origin for name, origin in imports.items() if is_ours(origin)},
        sorted(set(filter(is_ours, loaded))),
    )


def _definitions(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """Yield the parts that a statement of a module belongs to.

    An import is part of whatever uses its name.
    """
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.ClassDef(name=name) if name == ALL or any(map(_is_group, statement.body)):
            yield from _members(statement)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, statement
        case ast.Assign(targets=targets) if names := _bound(targets):
            yield from ((name, statement) for name in names)
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target) if names := _bound([target]):
            yield from ((name, statement) for name in names)
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            yield PROGRAM, statement
        case _:
            yield BODY, statement


def _members(settings: ast.ClassDef) -> Iterator[tuple[str, ast.AST]]:
    """Yield the parts of the class of all settings, or of a section.

    Of the class of all settings: each section, property and method, and under the class's own name what
    belongs to every object (bases, the library's validators). Of a section: its groups and properties, and
    what belongs to every object.
    """
    head = ast.ClassDef(settings.name, settings.bases, settings.keywords, [], settings.decorator_list)
    is_all = settings.name == ALL
    for member in settings.body:
        match member:
            case ast.AnnAssign(target=ast.Name(id=name)) if is_all or _is_group(member):
                yield f"{settings.name}.{name}", member
            case ast.FunctionDef(name=name, decorator_list=[ast.Name(id="property")]):
                yield f"{settings.name}.{name}", member
            case ast.FunctionDef(name=name, decorator_list=[]) if is_all:
                yield f"{settings.name}.{name}", member
            case _:
                head.body.append(member)
    yield settings.name, head


def _is_group(member: ast.stmt) -> bool:
    """Return True if it is a group of keys in a section that only one method uses."""
    match member:
        case ast.AnnAssign(value=ast.Call(func=ast.Name(id="group"))):
            return True
    return False


def _bound(targets: Iterable[ast.expr]) -> list[str]:
    """Return the names that an assignment binds; empty if it does anything else."""
    each = [name for to in targets for name in (to.elts if isinstance(to, ast.Tuple) else [to])]
    names = [name.id for name in each if isinstance(name, ast.Name)]
    return names if len(names) == len(each) else []
