"""Values as other YAML readers see them: DVC, which uses ruamel.yaml, and PyYAML, a reader of YAML 1.1."""

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml
from ruamel.yaml.resolver import implicit_resolvers

UNREADABLE = (yaml.YAMLError, ValueError, RecursionError)  # errors of `read_fast` for a file that is not YAML


def read_fast(file: Path) -> Any:
    """Return what DVC wrote into `file`, or a user into dvc.yaml, as DVC reads it.

    There are no bounds. It parses in C if PyYAML has that (ten times as fast).
    """
    return yaml.load(file.read_bytes(), _Fast)  # noqa: S506 (a SafeLoader)


_DVC = [
    (tag.rpartition(":")[2], pattern, first)
    for versions, tag, pattern, first in implicit_resolvers
    if (1, 2) in versions
]


class _Fast(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's loader with YAML 1.2's scalars: DVC writes 1e-05 for a number and a bare on for a text."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


for _kind, _pattern, _first in _DVC:
    _Fast.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _pattern, _first)


def dvc_kind(text: str) -> str:
    """Return the type of a bare scalar for ruamel.yaml, with which DVC reads."""
    return next((kind for kind, pattern, first in _DVC if text[:1] in first and pattern.match(text)), "str")


def old_kind(text: str) -> str:
    """Return the type of a bare scalar for PyYAML, a reader of YAML 1.1."""
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers.get(text[:1], [])
    return next((tag.rpartition(":")[2] for tag, pattern in resolvers if pattern.match(text)), "str")


def is_plain_text(text: str) -> bool:
    """Return True if `text` may be written unquoted, because every YAML reader reads it as text."""
    return bool(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_./-]*", text)) and {
        dvc_kind(text),
        old_kind(text),
    } == {"str"}
