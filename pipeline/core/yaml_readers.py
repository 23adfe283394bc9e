"""What other readers take YAML for: DVC, which reads by ruamel.yaml, and PyYAML, a reader of YAML 1.1."""

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml
from ruamel.yaml.resolver import implicit_resolvers

UNREADABLE = (yaml.YAMLError, ValueError, RecursionError)  # of `read_fast` for a file that is not YAML


def read_fast(file: Path) -> Any:
    """What DVC wrote into `file`, or a user into dvc.yaml: read as DVC does, without bounds, in C where
    PyYAML has it (ten times as fast).
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
    """What ruamel.yaml, which DVC reads with, takes a bare scalar for."""
    return next((kind for kind, pattern, first in _DVC if text[:1] in first and pattern.match(text)), "str")


def old_kind(text: str) -> str:
    """What PyYAML, a reader of YAML 1.1, takes a bare scalar for."""
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers.get(text[:1], [])
    return next((tag.rpartition(":")[2] for tag, pattern in resolvers if pattern.match(text)), "str")


def is_plain_text(text: str) -> bool:
    """Whether `text` may be written unquoted: every YAML reader takes it for text, wherever it stands."""
    return bool(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_./-]*", text)) and {
        dvc_kind(text),
        old_kind(text),
    } == {"str"}
