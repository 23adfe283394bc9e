"""The key of a stage's code: what rules and DVC's stages depend on instead of a list of modules.

    python -m pipeline code       writes .quench/code/STAGE.key for every stage

A key lists the modules that a stage's own module imports, at any depth and also inside functions, and the
data files (templates, questions) that these name, each with a hash. A module's hash is that of its syntax
tree: comments, docstrings and layout change no key, and no stage runs again.

Settings choose none of them: DVC's stage `code` and Snakemake write the keys before anybody reads
params.yaml. So the key of train has GRPO's llama-server and scorers under every `train.method`, and an edit
there trains again where it need not. The other way, a list of what a method leaves out, would be wrong at the
first import that somebody forgets.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from pipeline.core.errors import MachineError
from pipeline.core.places import PACKAGE, RESOURCES, own_folder
from pipeline.workflow import syntax
from pipeline.workflow.syntax import Source, content_hash, read_source

CODE = "code"  # DVC's first stage, which writes the keys
FOLDER = f".quench/{CODE}"  # its output
# what was parsed before, by content: may be deleted at any time
MEMORY = own_folder() / ".quench" / "syntax.json"
ROOT = "pipeline"
LEFTOVERS = ("~", ".orig", ".rej", ".bak", ".tmp", ".swp")  # of editors and merges


def stage_module(stage: str) -> str:
    """The module whose `main` is the stage ("compare_nf4": `compare.nf4`); everything else that a stage runs
    is found from here.
    """
    package, _, part = stage.partition("_")
    return f"{ROOT}.stages.{package}.{part or 'stage'}"


def key_file(stage: str) -> str:
    """The file, relative to the project, that changes when the code of `stage` does."""
    return f"{FOLDER}/{stage}.key"


def write_keys(root: Path, modules: Mapping[str, Iterable[str]]) -> list[str]:
    """Write the key of each stage below `root`, given the modules that it starts from; the stages whose code
    has changed.

    Raises `MachineError` if a key can't be written.
    """
    changed = []
    try:
        package = Package()
        for stage, own in modules.items():
            file, text = root / key_file(stage), package.key(*own)
            if not file.is_file() or file.read_text(encoding="utf-8") != text:
                _replace(file, text)
                changed.append(stage)
        for file in (root / FOLDER).glob("*.key"):
            if file.stem not in modules:
                file.unlink(missing_ok=True)  # of a stage that is no more
    except OSError as error:
        raise MachineError(
            "Q-WORKFLOW-001",
            f"{root / FOLDER} can't be written ({error.strerror}): make room there, or make the folder yours",
        ) from error
    return changed


class Package:
    """The files of a package as they are now; `memory` spares parsing those that were seen before."""

    def __init__(self, folder: Path = PACKAGE, memory: Path = MEMORY) -> None:
        self.folder = folder
        self.sources = self._read(memory)
        self._edges: dict[str, set[str]] = {}

    def key(self, *modules: str) -> str:
        """A line for each file that `modules` reach: its hash and its path."""
        return "".join(f"{self.sources[path].digest} {path}\n" for path in sorted(self.closure(*modules)))

    def closure(self, *modules: str) -> set[str]:
        """The files, relative to the package's folder, that `modules` reach, and their own. Raises `KeyError`
        for a module that is not there.
        """
        waiting = {self.modules[module] for module in modules}.union(
            *(self._named(module, "") for module in modules)
        )
        found: set[str] = set()
        while waiting:
            path = waiting.pop()
            found.add(path)
            waiting |= self.edges(path) - found
        return found

    def edges(self, path: str) -> set[str]:
        """The files that one file leads to."""
        if path not in self._edges:
            folder = path.rpartition("/")[0]
            found = set(self.unnamed.get(folder, ())) if path.endswith(".py") else set()
            for name in self.sources[path].names:
                found |= self._named(name, folder)
            self._edges[path] = found - {path}
        return self._edges[path]

    def _named(self, name: str, folder: str) -> set[str]:
        """What `name` stands for in a file of `folder`: a module with the packages around it, a program
        beside it, data files.
        """
        parts = name.split(".")
        around = {
            self.modules[one]
            for end in range(2, len(parts) + 1)
            if (one := ".".join(parts[:end])) in self.modules
        }
        beside = f"{folder}/{name}".removeprefix("/")
        return (
            around
            | self.aliases.get(name, set())
            | ({beside} if name.endswith(".py") and beside in self.sources else set())
        )

    @cached_property
    def modules(self) -> dict[str, str]:
        """{dotted name: path}; the package's own `__init__`, which holds the version's number alone, is left
        out.
        """
        paths = [path for path in self.sources if path.endswith(".py") and path != "__init__.py"]
        return {
            ".".join([ROOT, *path.removesuffix(".py").removesuffix("/__init__").split("/")]): path
            for path in paths
        }

    @cached_property
    def aliases(self) -> dict[str, set[str]]:
        """{what a data file, or its folder ("index/"), may be called: its path}; of two in one package that
        share a name, the outer one.
        """
        found: dict[str, set[str]] = {}
        taken: dict[tuple[str, str], int] = {}
        for path in sorted(self._data(), key=lambda path: path.count("/")):
            parts, depth = path.split("/"), path.count("/")
            tails = {"/".join(parts[start:]) for start in range(len(parts))}
            for name in tails | {tail.removesuffix(".jinja") for tail in tails}:
                if taken.setdefault((self._package(path), name), depth) == depth:
                    found.setdefault(name, set()).add(path)
            for start in range(depth):
                found.setdefault(f"{'/'.join(parts[start:-1])}/", set()).add(path)
        return found

    @cached_property
    def unnamed(self) -> dict[str, set[str]]:
        """{folder of a package: its data files that no file names}: every module in it counts as one that
        reads them.
        """
        used = {
            path
            for source in self.sources.values()
            for name in source.names
            for path in self.aliases.get(name, ())
        }
        found: dict[str, set[str]] = {}
        for path in set(self._data()) - used:
            found.setdefault(self._package(path), set()).add(path)
        return found

    def _package(self, path: str) -> str:
        """The folder of the package that `path` belongs to."""
        folder = path.rpartition("/")[0]
        while folder and f"{folder}/__init__.py" not in self.sources:
            folder = folder.rpartition("/")[0]
        return folder

    def _data(self) -> list[str]:
        return [path for path in self.sources if not path.endswith(".py")]

    def _read(self, memory: Path) -> dict[str, Source]:
        version = content_hash(Path(syntax.__file__).read_bytes())
        known = _recall(memory, version)
        found: dict[str, Source] = {}
        seen: dict[str, Source] = {}
        for path in _files(self.folder):
            try:
                content = (self.folder / path).read_bytes()
            except FileNotFoundError:
                continue  # an editor replaces it at this moment, or it is a link to nowhere
            name = f"{content_hash(content)}{Path(path).suffix}"
            seen[name] = known.get(name) or read_source(content, is_python=path.endswith(".py"))
            found[path] = seen[name]
        if seen.keys() != known.keys():
            with suppress(OSError):  # what is not remembered is parsed again
                _replace(memory, json.dumps({"version": version, "files": seen}))
        return found


def _files(folder: Path) -> list[str]:
    """All files below `folder`, relative to it, but for caches, hidden files, what editors leave beside a
    file, and what a wheel brings along, so that its keys are those of a checkout.
    """
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if name != "__pycache__" and not name.startswith(".") and Path(place, name) != RESOURCES
        ]
        names = [name for name in names if not name.startswith((".", "#")) and not name.endswith(LEFTOVERS)]
        found += [Path(place, name).relative_to(folder).as_posix() for name in names]
    return sorted(found)


def _recall(memory: Path, version: str) -> dict[str, Source]:
    try:
        found = json.loads(memory.read_bytes())
        return (
            {name: Source(*source) for name, source in found["files"].items()}
            if found["version"] == version
            else {}
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _replace(file: Path, text: str) -> None:
    """Write `file` in one rename, by a name of its own: jobs that run side by side may do so at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{os.getpid()}.writing")
    aside.write_text(text, encoding="utf-8")
    aside.replace(file)
