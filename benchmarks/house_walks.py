"""Which modules a value goes through, from a stage's `main` down, and how often the way climbs again.

The walk takes the calls in the order of the text, what a call runs before the next call, and follows the
value where it is an argument: a name or a field that is called like the value, a parameter that got it, an
object made of it (its carrier). A function that gets the carrier alone counts if it names the value or calls
one that does. What is chosen while the program runs is not followed: a table's function, a method of an
object whose class stands nowhere.

A climb: the module that the walk enters next, for the first time, stands above the last one: in a higher
layer (`tool.importlinter` in pyproject.toml) or, in the same layer, in a folder above.
"""

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

VALUE, CARRIER = "value", "carrier"


class Way(NamedTuple):
    """Where a walk begins: the module of a stage's `main`, its parameter from which the value comes, and what
    the value is called.
    """

    module: str
    start: str
    names: tuple[str, ...]


WALKS = {
    "the base folder through merge": Way("pipeline.stages.merge.stage", "root", ("base",)),
    "the settings through train": Way(
        "pipeline.stages.train.stage", "params", ("settings", "train", "training")
    ),
}


class Place(NamedTuple):
    """A function, method or class: the names of its module and its own, and what stands there."""

    module: str
    name: str
    node: Any

    @property
    def parameters(self) -> list[ast.arg]:
        """Of a function, `self` among them."""
        return [*self.node.args.posonlyargs, *self.node.args.args, *self.node.args.kwonlyargs]


@dataclass
class Scope:
    """What a function's variables hold: the value or its carrier, and objects of which class."""

    module: str
    holds: dict[str, str] = field(default_factory=dict)
    classes: dict[str, Place] = field(default_factory=dict)


class Walk:
    """The walk of a value that is called one of `names` through the modules of pipeline below `root`."""

    def __init__(self, root: Path, trees: Mapping[Path, ast.Module], names: Sequence[str]) -> None:
        self.names, self.entered = names, list[str]()
        self.seen: dict[object, bool] = {}  # by function and what its parameters hold
        self.places: dict[tuple[str, str], Place] = {}
        self.imports: dict[str, dict[str, tuple[str, str]]] = {}
        for path, tree in trees.items():
            module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
            self.imports[module] = {
                alias.asname or alias.name: (str(node.module), alias.name)
                for node in imports
                for alias in node.names
            }
            for node in tree.body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    self.places[module, node.name] = Place(module, node.name, node)

    def called(self, scope: Scope, node: ast.expr) -> Place | None:
        """The function, method or class that an expression names."""
        if isinstance(node, ast.Name):
            return self.places.get(self.imports[scope.module].get(node.id, (scope.module, node.id)))
        if not isinstance(node, ast.Attribute):
            return None
        owner = self.class_of(scope, node.value) or self.called(scope, node.value)
        return self.method(owner, node.attr) if owner and isinstance(owner.node, ast.ClassDef) else None

    def method(self, owner: Place, name: str) -> Place | None:
        """A method of a class."""
        parts = (part for part in owner.node.body if isinstance(part, ast.FunctionDef) and part.name == name)
        return next((Place(owner.module, f"{owner.name}.{name}", part) for part in parts), None)

    def class_of(self, scope: Scope, node: ast.expr) -> Place | None:
        """The class whose object a variable, a field that has an annotation, or a call's result is."""
        if isinstance(node, ast.Name):
            return scope.classes.get(node.id)
        if isinstance(node, ast.Attribute) and (owner := self.class_of(scope, node.value)):
            noted = (part for part in owner.node.body if isinstance(part, ast.AnnAssign))
            fields = (part.annotation for part in noted if ast.unparse(part.target) == node.attr)
            return self.named(owner.module, next(fields, None))
        if isinstance(node, ast.Call) and (place := self.called(scope, node.func)):
            made = isinstance(place.node, ast.ClassDef)
            return place if made else self.named(place.module, place.node.returns)
        return None

    def named(self, module: str, annotation: ast.expr | None) -> Place | None:
        """The class of pipeline that an annotation names."""
        if isinstance(annotation, ast.Constant):
            annotation = ast.parse(str(annotation.value), mode="eval").body
        place = self.called(Scope(module), annotation) if annotation else None
        return place if place and isinstance(place.node, ast.ClassDef) else None

    def held(self, scope: Scope, node: ast.AST | None) -> str | None:
        """Whether an expression is the value or its carrier."""
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in self.names:
                return VALUE
            case ast.Name(id=name):
                return scope.holds.get(name)
            case ast.Attribute(value=owner) if self.class_of(scope, node) and self.held(scope, owner):
                return CARRIER
            case ast.Call(func=ast.Name(id="vars"), args=[inner]):
                return self.held(scope, inner)
            case ast.Call(func=function) if isinstance(function, ast.Call) or self.class_of(scope, node):
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                return CARRIER if any(self.held(scope, part) for part in given) else None
        return None

    def follow(self, place: Place, holds: Mapping[str, str]) -> bool:
        """Walk through a function whose parameters hold that; whether it has to do with the value."""
        key = (place.module, place.name, frozenset(holds.items()))
        if key in self.seen:
            return self.seen[key]
        self.seen[key] = relevant = VALUE in holds.values()  # until then, for one that calls itself
        before, scope = len(self.entered), Scope(place.module, dict(holds))
        self.entered.append(place.module)
        owner = self.places.get((place.module, place.name.partition(".")[0]))
        for parameter in place.parameters:
            itself = owner if parameter.arg in ("self", "cls") else None
            if of := itself or self.named(place.module, parameter.annotation):
                scope.classes[parameter.arg] = of
        for node in in_order(place.node):
            if isinstance(node, ast.Call):
                relevant |= self.enter(scope, node)
            elif isinstance(node, ast.Assign):
                assign(self, scope, node)
            relevant |= self.held(scope, node) == VALUE
        if not relevant:
            del self.entered[before:]
        self.seen[key] = relevant
        return relevant

    def enter(self, scope: Scope, call: ast.Call) -> bool:
        """Follow a call that is given the value or its carrier; whether it has to do with the value."""
        if ast.unparse(call.func) == "partial" and call.args:
            call = ast.Call(call.args[0], call.args[1:], call.keywords)
        place = self.called(scope, call.func)
        if place and isinstance(place.node, ast.ClassDef):
            place = self.method(place, "__init__")
        if place is None:
            return False
        names = [parameter.arg for parameter in place.parameters]
        bound = names[1:] if names[:1] in (["self"], ["cls"]) else names
        holds = {name: self.held(scope, node) for name, node in zip(bound, call.args, strict=False)}
        holds |= {str(keyword.arg): self.held(scope, keyword.value) for keyword in call.keywords}
        if isinstance(call.func, ast.Attribute):
            holds["self"] = self.held(scope, call.func.value)
        given = {name: kind for name, kind in holds.items() if kind}
        return bool(given) and self.follow(place, given)


def assign(walk: Walk, scope: Scope, node: ast.Assign) -> None:
    """Note what variables hold from here on."""
    for target in node.targets:
        several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
        pairs = zip(target.elts, node.value.elts, strict=False) if several else [(target, node.value)]
        for name, value in pairs:
            if isinstance(name, ast.Name) and (kind := walk.held(scope, value)):
                scope.holds[name.id] = kind
            if isinstance(name, ast.Name) and (of := walk.class_of(scope, value)):
                scope.classes[name.id] = of


def in_order(node: ast.AST) -> Iterator[ast.AST]:
    """All below `node` as it is computed: a call's arguments before the call."""
    for child in ast.iter_child_nodes(node):
        yield from in_order(child)
        yield child


def modules_of(root: Path, trees: Mapping[Path, ast.Module], way: Way) -> list[str]:
    """The modules of pipeline, `trees`, that the value goes through, in the order of the walk."""
    walk = Walk(root, trees, way.names)
    walk.follow(walk.places[way.module, "main"], {way.start: CARRIER})
    return list(dict.fromkeys(walk.entered))


def climbs(root: Path, trees: Mapping[Path, ast.Module], way: Way) -> int:
    """How often the next module of a walk stands above the last one."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    listed = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    layer = {name: number for number, names in enumerate(listed) for name in names.split(" : ")}
    modules = modules_of(root, trees, way)
    levels = [(layer[module.split(".")[1]], module.count(".")) for module in modules]
    return sum(later < earlier for earlier, later in pairwise(levels))
