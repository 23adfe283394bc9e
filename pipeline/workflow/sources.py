"""The files of the package as they are now, each read into what it means; one that was seen before is not
parsed again.
"""

import ast
import inspect
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.places import RESOURCES, own_folder
from pipeline.workflow import definitions, syntax, uses
from pipeline.workflow.definitions import Module, module_of
from pipeline.workflow.syntax import content_hash, tree_hash
from pipeline.workflow.uses import NAME, Part

# what was parsed before, by content: may be deleted at any time
MEMORY = own_folder() / ".quench" / "syntax.json"
LEFTOVERS = ("~", ".orig", ".rej", ".bak", ".tmp", ".swp")  # of editors and merges
QUOTED = re.compile(rf"""["']({NAME.pattern})["']""")


class Source(NamedTuple):
    """A file: the hash of what it means, every text in it that may name another file, and a module's parts
    (None: not Python).
    """

    digest: str
    texts: list[str]
    module: Module | None

    @property
    def parts(self) -> dict[str, Part]:
        """A module's."""
        return self.module.parts if self.module else {}


def read_source(content: bytes, *, is_python: bool) -> Source:
    """What a file means and names. One that is not Python, though it should be, is taken as it stands:
    whoever imports it will say so.
    """
    if is_python:
        with suppress(SyntaxError, ValueError):
            tree = ast.parse(content)
            module = module_of(tree)
            texts = {text for part in module.parts.values() for text in part.texts}
            return Source(tree_hash(tree), sorted(texts), module)
    texts = set(QUOTED.findall(content.decode("utf-8", errors="replace")))
    return Source(content_hash(content), sorted(texts), None)


def read_sources(folder: Path, memory: Path) -> dict[str, Source]:
    """The files below `folder`, read; `memory` holds those that were seen before."""
    readers = (inspect.getsource(module) for module in (definitions, syntax, uses))
    version = content_hash("".join(readers).encode())
    remembered = _recall(memory, version)
    sources: dict[str, Source] = {}
    seen: dict[str, Source] = {}
    for path in _files(folder):
        try:
            content = (folder / path).read_bytes()
        except FileNotFoundError:
            continue  # an editor replaces it at this moment, or it is a link to nowhere
        name = f"{content_hash(content)}{Path(path).suffix}"
        seen[name] = remembered.get(name) or read_source(content, is_python=path.endswith(".py"))
        sources[path] = seen[name]
    if seen.keys() != remembered.keys():
        with suppress(OSError):  # what is not remembered is parsed again
            write_whole(memory, json.dumps({"version": version, "files": seen}))
    return sources


def _files(folder: Path) -> list[str]:
    """All files below `folder`, relative to it, but for caches, hidden files, what editors leave beside a
    file, and what a wheel brings along, so that its keys are those of a checkout.
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
        return {name: _source(*source) for name, source in files.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _source(digest: str, texts: list[str], module: list[Any] | None) -> Source:
    if module is None:
        return Source(digest, texts, None)
    parts, imports, loads = module
    return Source(digest, texts, Module({name: Part(*part) for name, part in parts.items()}, imports, loads))


def write_whole(file: Path, text: str) -> None:
    """Write `file` in one rename, by a name of its own: jobs that run side by side may do so at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{os.getpid()}.writing")
    aside.write_text(text, encoding="utf-8")
    aside.replace(file)
