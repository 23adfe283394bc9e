"""The meaning and the uses of a definition, read from Python's syntax tree: a hash that comments and layout
don't change, and names that may lead to other definitions of the project.

A function with all settings as a parameter (`params: Params`) uses the sections, properties and methods that
it reads from them, and not the class with all its sections. Settings that it passes on count in the function
that reads them. A section's groups (`train.grpo`) and properties are used by code that reads an attribute of
that name from anything.
"""

import ast
import builtins
import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

ROOT = "pipeline"
# Fields of a syntax tree that mean nothing, or nothing in every version of Python.
IGNORED = {"ctx", "kind", "type_comment", "type_ignores"}
# Functions that declare a key of params.yaml. The last text is the comment above the key, and not code.
DESCRIBED = {f"{ROOT}.config.sections.values.{name}": name for name in ("key", "group")}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NAME = re.compile(r"[\w./-]{1,100}")  # a text that may name a module or a data file
PLACE = {"__file__", "__name__"}  # names by which a module starts itself as a program
ALL = "Params"  # the class of all settings
SETTINGS = f"{ROOT}.config.params.{ALL}"
ANYTHING = "*"  # prefix of a name that is read from any object
HEAD = "#"  # suffix of the part that belongs to every object, without sections, properties and methods
# the library's method that returns what params.yaml contains, and runs none of our code
VALUES = "model_dump"
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Part(NamedTuple):
    """A definition: the hash of its meaning and the names that it uses.

    `uses` are the project's names ("pipeline.core.jsonl.Row", ".Row" of its own module, "." that as a
    program, "*.grpo" what an object may have). `texts` may name a file. `hands` are the functions that it
    passes all settings to. `takes` is True for a function that has them as a parameter.
    """

    digest: str
    uses: list[str]
    texts: list[str]
    hands: list[str]
    takes: bool


class Reader:
    """A reader of the nodes of one part; `scope` contains the meaning of the module's names.

    In a method of the class of all settings (`of_settings`) these are `self`.
    """

    def __init__(self, scope: dict[str, str], *, of_settings: bool) -> None:
        self.scope = dict(scope)
        self.of_settings = of_settings
        self.uses: set[str] = set()
        self.texts: set[str] = set()
        self.hands: set[str] = set()
        self.origins: set[str] = set()  # origins of imported names: part of the meaning
        self.settings: set[str] = set()  # parameters that are all settings
        self.in_signature = False  # True inside a type, which passes on no settings

    def part(self, nodes: list[ast.AST]) -> Part:
        for node in nodes:
            self.scope |= dict(imported_in(ast.walk(node)))  # inside functions
        for node in nodes:
            self.visit(node)
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        return Part(
            content_hash("".join([*map(tree_hash, nodes), *sorted(self.origins)]).encode()),
            sorted(self.uses),
            sorted(self.texts),
            sorted(self.hands),
            any(self.is_settings(each.annotation) for node in functions for each in _arguments(node)),
        )

    def visit(self, node: ast.AST) -> None:
        """Record what a node and all below it use."""
        if name := dotted(node):
            self.use(name)
            return
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self.function(node)
            case ast.Constant(value=str(text)) if NAME.fullmatch(text):
                self.texts.add(text)
            case ast.Import(names=names):  # inside a function
                self.uses |= {alias.name for alias in names if is_ours(alias.name)}
            case ast.Attribute(value=value, attr=name):
                self.uses.add(f"{ANYTHING}.{name}")
                self.visit(value)
            case ast.Subscript(value=ast.Name(id="Callable")):
                self.signature(node.slice)
            case ast.Expr(value=ast.Call(func=function) as check) if self.is_check(function):
                for argument in (*check.args, *check.keywords):
                    self.visit(argument)
            case ast.Call():
                self.call(node)
            case _:
                for child in ast.iter_child_nodes(node):
                    self.visit(child)

    def use(self, name: str) -> None:
        """Record a name with its attributes ("sections.Train")."""
        first, _, attributes = name.partition(".")
        if first in PLACE:
            self.uses.add(".")
        origin = self.scope.get(first, "")
        if not origin or origin.startswith(".") or is_ours(origin):
            self.uses |= {f"{ANYTHING}.{attribute}" for attribute in attributes.split(".") if attribute}
        if first in self.settings:
            taken = attributes.partition(".")[0]
            if taken == VALUES:
                taken = HEAD
            self.uses.add(f"{SETTINGS}.{taken}" if taken else SETTINGS)
            return
        if origin and not origin.startswith("."):
            self.origins.add(f"{first}={origin}\n")
        if origin.startswith(".") or is_ours(origin):
            only_head = self.in_signature and _is_class(origin)
            self.uses.add(".".join(filter(None, (origin, attributes, HEAD if only_head else ""))))

    def function(self, node: Function) -> None:
        """Record a function: first the parameters that are all settings, then the rest."""
        before = set(self.settings)
        for argument in _arguments(node):
            by_name = isinstance(node, ast.Lambda) and argument.arg == "params"
            is_self = self.of_settings and argument.arg == "self"
            if by_name or is_self or self.is_settings(argument.annotation):
                self.settings.add(argument.arg)
                self.uses.add(f"{SETTINGS}.{HEAD}")
            else:
                self.settings.discard(argument.arg)
                if argument.annotation is not None:
                    self.visit(argument.annotation)
        body = [node.body] if isinstance(node, ast.Lambda) else [*node.decorator_list, *node.body]
        for child in (*node.args.defaults, *node.args.kw_defaults, *body):
            if child is not None:
                self.visit(child)
        if not isinstance(node, ast.Lambda) and node.returns is not None:
            self.signature(node.returns)
        self.settings = before

    def signature(self, node: ast.AST) -> None:
        """Record a type of a parameter or a result."""
        before = self.in_signature
        self.in_signature = True
        self.visit(node)
        self.in_signature = before

    def call(self, node: ast.Call) -> None:
        """Record a call.

        A function of the project with a parameter for all settings may get them. So may one in a local
        variable or in a table, because its name is somewhere else in the code.
        """
        self.visit(node.func)
        first, _, rest = dotted(node.func).partition(".")
        origin = "" if first in self.settings else self.scope.get(first, "")
        is_projects = origin.startswith(".") or is_ours(origin)
        is_local = bool(first) and not rest and first not in self.scope and not hasattr(builtins, first)
        may_have = is_projects or is_local or isinstance(node.func, ast.Subscript)
        for argument in (*node.args, *node.keywords):
            value = argument.value if isinstance(argument, ast.keyword) else argument
            if not (may_have and isinstance(value, ast.Name) and value.id in self.settings):
                self.visit(value)
            elif is_projects:
                self.hands.add(f"{origin}.{rest}" if rest else origin)

    def is_settings(self, annotation: ast.expr | None) -> bool:
        """Return True if a parameter with this annotation is all settings."""
        name = annotation.value if isinstance(annotation, ast.Constant) else dotted(annotation)
        return _is_class(self.scope.get(str(name), ""))

    def is_check(self, function: ast.expr) -> bool:
        """Return True if it is `Params.model_validate`, which can only refuse if its result is dropped."""
        first, _, method = dotted(function).partition(".")
        return method == "model_validate" and _is_class(self.scope.get(first, ""))


def imported_in(nodes: Iterable[ast.AST], *, checking: bool = True) -> Iterator[tuple[str, str]]:
    """Yield (name, its meaning) of imports; of those for type checkers only if they are `checking`."""
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from ((alias.asname or alias.name.partition(".")[0], alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names):
                yield from ((alias.asname or alias.name, f"{module}.{alias.name}") for alias in names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from imported_in(node.body) if checking else ()
            case ast.If() | ast.Try() | ast.With():
                yield from imported_in(ast.iter_child_nodes(node), checking=checking)


def _is_class(origin: str) -> bool:
    return origin in (SETTINGS, f".{ALL}")


def is_ours(name: str) -> bool:
    return name.startswith(f"{ROOT}.")


def _arguments(function: Function) -> list[ast.arg]:
    spec = function.args
    ordered = (*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg)
    return [argument for argument in ordered if argument]


def take_out_comments(tree: ast.Module, imports: dict[str, str]) -> None:
    """Remove docstrings from a module, and the comments above keys of params.yaml.

    `imports` are the names that it imports, with their meanings.
    """
    described = {name for name, origin in imports.items() if origin in DESCRIBED}
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in described:
            del node.args[1:]
        elif isinstance(node, ast.JoinedStr):
            # Python 3.12 has empty texts in nested formats.
            node.values = [part for part in node.values if getattr(part, "value", None) != ""]


def dotted(node: ast.AST | None) -> str:
    """Return "a.b.c" for a name with attributes; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def tree_hash(node: ast.AST) -> str:
    """Return a short hash of a syntax tree."""
    return content_hash(_written(node).encode("utf-8", errors="surrogatepass"))


def _written(node: object) -> str:
    """Return a syntax tree as text, the same for every version of Python.

    `ast.dump` differs in empty fields.
    """
    if isinstance(node, list):
        return f"[{''.join(map(_written, node))}]"
    if not isinstance(node, ast.AST):
        return f"{node!r},"
    fields = [(name, getattr(node, name, None)) for name in node._fields if name not in IGNORED]
    inner = "".join(f"{name}={_written(value)}" for name, value in fields if value not in (None, []))
    return f"{type(node).__name__}({inner})"


def content_hash(content: bytes) -> str:
    """Return a short hash of bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
