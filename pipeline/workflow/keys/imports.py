"""The files of the package that a module needs: those that it imports, at any depth, and what these read.

Files are followed by their import statements, also those inside functions. A module needs the data files in
its package's folder (templates, questions, CMake files), and a program in that folder that it names
("converter_process.py"). A module that is imported by a name put together at run time can't be found this
way: it is named as a start of its own (the methods of training, extras that a stage uses).

`PLUMBING` is followed only from a start that lies in it: its edits run nothing else again.
"""

import ast
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pipeline.core.places import PACKAGE, RESOURCES, own_folder

ROOT = "pipeline"
PLUMBING: Mapping[str, str] = {
    "pipeline.core": "errors, publishing, locks, hashes, progress: no product depends on how they are done",
    "pipeline.config.sections": "the schema of params.yaml: a stage depends on the values, which DVC tracks",
    "pipeline.config.params": "the same: how params.yaml is read and checked",
    "pipeline.config.params_text": "the same: how it is written",
    "pipeline.config.faults": "the same: what is said of a faulty one",
    "pipeline.config.overrides": "the same: settings from a command line",
    "pipeline.config.training_problems": "the same: settings that don't fit together",
    "pipeline.pages": "how figures are shown, which only stage report has as its product",
    "pipeline.planning": "what a run will need: it refuses a run or prints, and computes nothing of it",
    "pipeline.workflow": "when a stage runs",
}
# Editors and merges leave files with these endings.
LEFTOVERS = ("~", ".orig", ".rej", ".bak", ".tmp", ".swp")
# Cache of parsed files by the hash of their content. It may be deleted at any time.
MEMORY = own_folder() / ".quench" / "imports.json"
# These fields of a syntax tree mean nothing, or nothing in every version of Python.
IGNORED = {"ctx", "kind", "type_comment", "type_ignores"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Source(NamedTuple):
    """A file: a hash of its content, of a module without comments and docstrings; the modules that a module
    imports; the programs that it names.
    """

    digest: str
    imports: list[str]
    programs: list[str]


class Package:
    """The package's files, by their paths relative to its folder; as they are now if none are given."""

    def __init__(self, sources: Mapping[str, Source] | None = None) -> None:
        self.sources = read_sources(PACKAGE, MEMORY) if sources is None else sources
        self.modules = {module_name(path): path for path in self.sources if path.endswith(".py")}
        self.data: dict[str, list[str]] = {}  # paths of data files, by the package's folder
        for path in self.sources:
            if not path.endswith(".py"):
                self.data.setdefault(self._package_folder(path.rpartition("/")[0]), []).append(path)

    def key(self, *modules: str) -> str:
        """Return a line for each file that `modules` need: the hash of its content, and its path."""
        return "".join(f"{self.sources[path].digest} {path}\n" for path in sorted(self.closure(*modules)))

    def closure(self, *modules: str) -> set[str]:
        """Return the paths of all files that `modules` need, and their own. Raises `KeyError` for a module
        that is not there.
        """
        needed: set[str] = set()
        closed = [name for name in PLUMBING if not any(is_in(module, name) for module in modules)]
        waiting = [self.modules[module] for module in modules]
        while waiting:
            path = waiting.pop()
            if path not in needed:
                needed.add(path)
                waiting += self._needed_by(path, closed)
        return needed

    def _needed_by(self, path: str, closed: Sequence[str]) -> Iterator[str]:
        """Yield the files that one file needs itself, except those of the modules in `closed`."""
        source = self.sources[path]
        folder = path.rpartition("/")[0]
        if not path.endswith(".py"):
            return
        yield from self.data.get(self._package_folder(folder), ())
        for name in source.imports:
            if name in self.modules and not any(is_in(name, other) for other in closed):
                yield self.modules[name]
        for program in source.programs:
            beside = f"{folder}/{program}".removeprefix("/")
            if beside in self.sources:
                yield beside

    def _package_folder(self, folder: str) -> str:
        """Return the folder itself, or the one around it that is a package."""
        while folder and f"{folder}/__init__.py" not in self.sources:
            folder = folder.rpartition("/")[0]
        return folder


def is_in(module: str, package: str) -> bool:
    """Return True for a package itself and the modules in it."""
    return module == package or module.startswith(f"{package}.")


def module_name(path: str) -> str:
    """Return the dotted name of the module at a path relative to the package's folder."""
    parts = path.removesuffix(".py").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join([ROOT, *parts])


def read_sources(folder: Path, memory: Path) -> dict[str, Source]:
    """Return the files below `folder`, read; `memory` contains those that were parsed before."""
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    remembered = recall(memory, version)
    sources: dict[str, Source] = {}
    seen: dict[str, Source] = {}
    for path in files_below(folder):
        try:
            content = (folder / path).read_bytes()
        except FileNotFoundError:
            continue  # An editor replaces it at this moment, or it is a link to nowhere.
        name = f"{hashlib.sha256(content).hexdigest()}{Path(path).suffix}"
        seen[name] = remembered.get(name) or read_source(content, is_python=path.endswith(".py"))
        sources[path] = seen[name]
    if seen.keys() != remembered.keys():
        with suppress(OSError):  # What is not remembered is parsed again.
            write_whole(memory, json.dumps({"version": version, "files": seen}))
    return sources


def read_source(content: bytes, *, is_python: bool) -> Source:
    """Return what a file contains. A module with a fault in its syntax counts as it stands."""
    if is_python:
        with suppress(SyntaxError, ValueError):
            tree = ast.parse(content)
            imports = sorted(imported(tree))
            programs = sorted(named_programs(tree))
            drop_docstrings(tree)
            return Source(hash_of(written(tree).encode("utf-8", errors="surrogatepass")), imports, programs)
    return Source(hash_of(content), [], [])


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the names that may be modules of the package in all import statements; imports are absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith(f"{ROOT}."))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == ROOT:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named_programs(tree: ast.Module) -> set[str]:
    """Return the texts that may name a program in the module's folder."""
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and text.endswith(".py") and "/" not in text}


def drop_docstrings(tree: ast.Module) -> None:
    """Take all docstrings out of a tree."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body[:1] = []


def written(node: object) -> str:
    """Return a syntax tree as text, which is the same for every version of Python.

    `ast.dump` differs in empty fields.
    """
    if isinstance(node, list):
        return f"[{''.join(map(written, node))}]"
    if not isinstance(node, ast.AST):
        return f"{node!r},"
    fields = [(name, getattr(node, name, None)) for name in node._fields if name not in IGNORED]
    inner = "".join(f"{name}={written(value)}" for name, value in fields if value not in (None, []))
    return f"{type(node).__name__}({inner})"


def hash_of(content: bytes) -> str:
    """Return a hash with 32 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()[:32]


def files_below(folder: Path) -> list[str]:
    """Return all files below `folder`, relative to it, except caches, hidden files, what editors leave, and
    what a wheel brings along, so that its keys are those of a checkout.
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


def recall(memory: Path, version: str) -> dict[str, Source]:
    """Return what a memory of this version contains; nothing if it can't be read."""
    try:
        kept = json.loads(memory.read_bytes())
        files = kept["files"] if kept["version"] == version else {}
        return {name: Source(*source) for name, source in files.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def write_whole(file: Path, text: str) -> None:
    """Write `file` in one rename, by a name of its own: jobs that run side by side may do so at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{os.getpid()}.writing")
    aside.write_text(text, encoding="utf-8")
    aside.replace(file)
