"""The definitions of a module, each with a hash of what it means and the names that it uses."""

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pipeline.workflow.syntax import take_out_comments
from pipeline.workflow.uses import ALL, Part, Reader, imported_in, is_ours

OF_ALL = f"{ALL}."  # before the members of the class of all settings
BODY, PROGRAM = "", "__main__"  # parts of a module: what runs when it is imported, or started


class Module(NamedTuple):
    """The parts of a module, by name; where the names lead that it imports from the project; the modules
    that are imported with it.
    """

    parts: dict[str, Part]
    imports: dict[str, str]
    loads: list[str]


def module_of(tree: ast.Module) -> Module:
    """What a module consists of; comments go from `tree`."""
    imports = dict(imported_in(tree.body))
    take_out_comments(tree, imports)
    nodes: dict[str, list[ast.AST]] = {}
    for statement in tree.body:
        for name, node in _definitions(statement):
            nodes.setdefault(name, []).append(node)
    scope = imports | {name: f".{name}" for name in nodes if "." not in name}
    loaded = dict(imported_in(tree.body, checking=False)).values()
    return Module(
        {name: Reader(scope, of_settings=name.startswith(OF_ALL)).part(part) for name, part in nodes.items()},
        {name: origin for name, origin in imports.items() if is_ours(origin)},
        sorted(set(filter(is_ours, loaded))),
    )


def _definitions(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """The parts that a statement of a module belongs to; an import is part of whatever uses its name."""
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
    """The parts of the class of all settings: each section, property and method, and under the class's own
    name what belongs to every object (bases, the library's validators). Of a section: its groups and
    properties, and what belongs to every object.
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
    """Whether it is a group of keys in a section, that a method has for itself."""
    match member:
        case ast.AnnAssign(value=ast.Call(func=ast.Name(id="group"))):
            return True
    return False


def _bound(targets: Iterable[ast.expr]) -> list[str]:
    """The names that an assignment binds; none if it does anything else."""
    each = [name for to in targets for name in (to.elts if isinstance(to, ast.Tuple) else [to])]
    names = [name.id for name in each if isinstance(name, ast.Name)]
    return names if len(names) == len(each) else []
