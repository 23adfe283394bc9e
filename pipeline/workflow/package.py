"""The files of the package, and the parts of them that a module reaches: the definitions that it uses at any
depth, also inside functions, and the data files (templates, questions) that these name.

Any name of the package in a definition counts as used. A method counts with its class. An imported module
counts with the code that runs on import, and a module that is started as a program, or passed on as such,
with all of its parts. So more may count than is needed, and nothing that Python finds by its name is left
out. A name that is computed at run time (`importlib`, a method of training) has to be given as a start of its
own.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property

from pipeline.core.places import PACKAGE
from pipeline.workflow.sources import BODY, MEMORY, Source, read_sources
from pipeline.workflow.syntax import ALL, ANYTHING, HEAD, ROOT, SETTINGS, content_hash

CATALOG = "core/catalog/"  # sentences that explain errors: no product depends on them
Node = tuple[str, str]  # a file and one of its parts; `BODY` of a module means that it is imported


class Package:
    """The package of these files, by path; its current files if none are given."""

    def __init__(self, sources: Mapping[str, Source] | None = None) -> None:
        self.sources = read_sources(PACKAGE, MEMORY) if sources is None else sources
        self._edges: dict[Node, set[Node]] = {}

    def key(self, *modules: str) -> str:
        """Return a line for each file that `modules` reach: the hash of its reached parts, and its path."""
        reached = sorted(self.closure(*modules).items())
        return "".join(f"{self._digest(path, parts)} {path}\n" for path, parts in reached)

    def closure(self, *modules: str) -> dict[str, set[str]]:
        """Return {file, relative to the package's folder: its parts} that `modules` reach, their own
        included.

        Raises `KeyError` for a missing module.
        """
        waiting = {node for module in modules for node in self._whole(self.modules[module])}
        reached: set[Node] = set()
        while waiting:
            node = waiting.pop()
            reached.add(node)
            waiting |= self.edges(node) - reached
            if not waiting:  # Continue with what two nodes lead to together.
                waiting = {member for member, pair in self.members.items() if pair <= reached} - reached
        files: dict[str, set[str]] = {}
        for path, part in reached:
            if path == ANYTHING:
                continue
            if not self.sources[path].is_module or part in self.sources[path].parts:
                files.setdefault(path, set()).add(part)
        return files

    def edges(self, node: Node) -> set[Node]:
        """Return the parts that a part of a file leads to."""
        if node not in self._edges:
            self._edges[node] = set(self._led_to(*node)) - {node}
        return self._edges[node]

    def _led_to(self, path: str, name: str) -> Iterator[Node]:
        if path == ANYTHING:
            return
        source = self.sources[path]
        folder = path.rpartition("/")[0]
        if source.is_module and name == BODY:
            for module in source.loads:
                yield from self._imported(module)
        elif source.is_module:
            yield path, BODY
            yield from ((file, BODY) for file in self.unnamed.get(self._package(path), ()))
        part = source.parts.get(name)
        for used in part.uses if part else ():
            yield from self._used(used, path)
        for callee in part.hands if part else ():
            if not self._takes_settings(callee, path):
                yield from self._used(SETTINGS, path)
        texts: list[str] = []
        if part:
            texts = part.texts
        elif not source.is_module:
            texts = source.texts
        for text in texts:
            yield from self._named(text, folder)

    def _takes_settings(self, callee: str, path: str) -> bool:
        parts = (self.sources[file].parts.get(name) for file, name in self._used(callee, path))
        return any(part is not None and part.takes for part in parts)

    def _imported(self, name: str) -> Iterator[Node]:
        """Yield the module that `name` is or is in, and the packages around it, as imported."""
        parts = name.split(".")
        for end in range(2, len(parts) + 1):
            if path := self.modules.get(".".join(parts[:end])):
                yield path, BODY

    def _used(self, name: str, path: str) -> Iterator[Node]:
        """Yield the parts that a dotted name means in the module `path` (".name": one of its own)."""
        if name == ".":
            yield from self._whole(path)
        elif name.startswith(f"{ANYTHING}."):
            attribute = (ANYTHING, name.removeprefix(f"{ANYTHING}."))
            if attribute in self.attributes:
                yield attribute
        elif name.startswith("."):
            yield from self._in_module(path, name[1:].split("."))
        else:
            parts = name.split(".")
            for end in range(len(parts), 1, -1):
                if module := self.modules.get(".".join(parts[:end])):
                    yield from self._imported(".".join(parts[:end]))
                    yield from self._in_module(module, parts[end:])
                    return

    def _in_module(self, path: str, names: list[str]) -> Iterator[Node]:
        parts = self.sources[path].parts
        imports = self.sources[path].imports
        if not names:  # the module itself, of which anything may be used
            yield from self._whole(path)
            for origin in imports.values():
                yield from self._used(origin, path)
        elif names[1:] and ".".join(names[:2]) in parts:  # a member of a class of settings
            yield from ((path, part) for part in (names[0], ".".join(names[:2])))
        elif names[0] in parts:
            yield path, names[0]
            if names[0] == ALL and names[1:] != [HEAD]:
                yield from ((path, part) for part in parts if part.startswith(f"{names[0]}."))
        elif names[0] in imports:
            yield from self._used(".".join([imports[names[0]], *names[1:]]), path)
        else:
            yield from self._whole(path)

    def _whole(self, path: str) -> Iterator[Node]:
        yield path, BODY
        yield from ((path, part) for part in self.sources[path].parts)

    def _named(self, text: str, folder: str) -> Iterator[Node]:
        """Yield what a text means in a file of `folder`: a module, a program next to it, data files."""
        if module := self.modules.get(text):
            yield from self._imported(text)
            yield from self._whole(module)
        yield from ((path, BODY) for path in self.aliases.get(text, ()))
        file = f"{folder}/{text}".removeprefix("/")
        if text.endswith(".py") and file in self.sources:
            yield from self._whole(file)

    def _digest(self, path: str, parts: set[str]) -> str:
        source = self.sources[path]
        if not source.is_module:
            return source.digest
        lines = (f"{name} {source.parts[name].digest}\n" for name in sorted(parts))
        return content_hash("".join(lines).encode())

    @cached_property
    def modules(self) -> dict[str, str]:
        """{dotted name: path}; without the package's `__init__`, which contains only the version number."""
        paths = [path for path in self.sources if path.endswith(".py") and path != "__init__.py"]
        return {
            ".".join([ROOT, *path.removesuffix(".py").removesuffix("/__init__").split("/")]): path
            for path in paths
        }

    @cached_property
    def members(self) -> dict[Node, set[Node]]:
        """{group or property of a section: the section, and an access to an attribute of that name}."""
        return {
            (path, part): {(path, owner), (ANYTHING, name)}
            for path, source in self.sources.items()
            for part in source.parts
            for owner, dot, name in [part.partition(".")]
            if dot and owner != ALL
        }

    @cached_property
    def attributes(self) -> set[Node]:
        """All nodes in the values of `members`."""
        return set().union(*self.members.values())

    @cached_property
    def aliases(self) -> dict[str, set[str]]:
        """{possible name of a data file, or of its folder ("index/"): its path}.

        If two in one package share a name, the outer one has it.
        """
        aliases: dict[str, set[str]] = {}
        taken: dict[tuple[str, str], int] = {}
        for path in sorted(self._data(), key=lambda path: path.count("/")):
            parts = path.split("/")
            depth = path.count("/")
            tails = {"/".join(parts[start:]) for start in range(len(parts))}
            for name in tails | {tail.removesuffix(".jinja") for tail in tails}:
                if taken.setdefault((self._package(path), name), depth) == depth:
                    aliases.setdefault(name, set()).add(path)
            for start in range(depth):
                aliases.setdefault(f"{'/'.join(parts[start:-1])}/", set()).add(path)
        return aliases

    @cached_property
    def unnamed(self) -> dict[str, set[str]]:
        """{package folder: its data files that no file names}: every module in it counts as reading them."""
        used = {
            path
            for source in self.sources.values()
            for name in source.texts
            for path in self.aliases.get(name, ())
        }
        unnamed: dict[str, set[str]] = {}
        for path in set(self._data()) - used:
            unnamed.setdefault(self._package(path), set()).add(path)
        return unnamed

    def _package(self, path: str) -> str:
        """Return the folder of the package that `path` belongs to."""
        folder = path.rpartition("/")[0]
        while folder and f"{folder}/__init__.py" not in self.sources:
            folder = folder.rpartition("/")[0]
        return folder

    def _data(self) -> list[str]:
        return [path for path in self.sources if not path.endswith(".py") and not path.startswith(CATALOG)]
