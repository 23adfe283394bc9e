"""Find the linears whose weight the code around them reads, by the source of the model's classes.

An adapter on such a linear has no effect, because it works in the linear's own forward. A weight in NF4 is no
matrix that others could read.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

# What can be read of a weight in any form.
ABOUT = {"dtype", "device", "shape"}


def read_by_parents(model: Any) -> set[str]:
    """Return the paths of linears in `model` whose weight their parent module reads itself."""
    return {
        f"{name}.{child}".removeprefix(".")
        for name, module in model.named_modules()
        for child in _children_read(type(module).__module__).get(type(module).__name__, ())
        if hasattr(getattr(module, child, None), "in_features")
    }


def kept_in_16_bit(model: Any) -> list[str]:
    """Return the paths of linears that NF4 must leave as they are, in addition to those that transformers
    leaves. The output of a state space is not among them: only its kernels read it, and training has none.
    """
    return sorted(
        path for path in read_by_parents(model) if not _is_state_space(model.get_submodule(_parent(path)))
    )


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _is_state_space(module: Any) -> bool:
    return hasattr(module, "A_log") and hasattr(module, "D")


@cache
def _children_read(module: str) -> Mapping[str, set[str]]:
    """Return {class: children whose weight its methods read} for the classes of a Python module."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):  # no source, such as a class made while the program runs
        return {}
    return {part.name: set(_weights_read(part)) for part in tree.body if isinstance(part, ast.ClassDef)}


def _weights_read(part: ast.ClassDef) -> Iterator[str]:
    """Yield NAME for each `self.NAME.weight` that a class reads."""
    attributes = [node for node in ast.walk(part) if isinstance(node, ast.Attribute)]
    only_about = {id(node.value) for node in attributes if node.attr in ABOUT}
    for node in attributes:
        match node:
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="self"), attr=child), attr="weight", ctx=ast.Load()
            ) if id(node) not in only_about:
                yield child
