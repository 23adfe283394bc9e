"""Find the objects of DVC's cache that neither the working tree nor the last runs need, and remove them.

An object is needed if its hash is in
- a `dvc.lock` or `*.dvc` file of the working tree or of Git's index,
- such a file at the tip of a branch or tag, in a stash, or in one of the last commits of `dvc.lock`,
- one of the newest records that DVC keeps of each stage's runs, for runs that were never committed,
or if a link in the working tree points to it. Hashes are found in the text of these files, so a file that is
damaged, or of another version of DVC, keeps its objects too. `dvc gc` would read each commit's dvc.yaml with
its settings and, if one can't be read, either fail or delete what that commit needs.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import DataError, MachineError, ToolError
from pipeline.core.git import ask_git
from pipeline.workflow.state.dvc_project import FOLDER_ENDING, RUN, listing, place

HASH = re.compile(rb"(?<![0-9a-f])[0-9a-f]{32}(?:\.dir)?(?![0-9a-f])")
OBJECT = re.compile(r"[0-9a-f]{32}(\.dir)?")
COMMAND = re.compile(rb"^cmd: *(.*)$", re.MULTILINE)
BLOB = re.compile(r"\b[0-9a-f]{40,}\b")  # in the lists of Git's commits and of its index
EMPTY = b"[]"  # list of a folder without files
NOT_SEARCHED = (".git", ".dvc", ".venv")


@dataclass(frozen=True)
class Cache:
    """DVC's cache of the project `root`: the folders of its objects and of its records of runs. `in_git` is
    False for a project that DVC is told to keep without Git.
    """

    root: Path
    objects: Path
    runs: Path
    in_git: bool

    def sizes(self) -> dict[str, int]:
        """Return {name of an object: the bytes that are free once it is gone}. These are 0 if a file of the
        project is a hard link to it.
        """
        found = {}
        for folder, _, names in os.walk(self.objects):
            for name in names:
                whole = Path(folder).name + name
                if OBJECT.fullmatch(whole):
                    state = Path(folder, name).lstat()
                    found[whole] = state.st_size if state.st_nlink == 1 else 0
        return found


def unused(cache: Cache, keep: int) -> dict[str, int]:
    """Return {name: bytes} of the objects that the working tree and the last `keep` runs don't need.

    Raises `DataError` if the list of a folder that is needed is damaged.
    """
    needed = _needed(cache, keep)
    return {name: size for name, size in cache.sizes().items() if name not in needed}


def remove_unused(cache: Cache, names: Iterable[str]) -> None:
    """Delete objects of the cache, and the records of runs that name one of them.

    Raises `MachineError` if one can't be deleted.
    """
    gone = set(names)
    try:
        for record in _records(cache):
            if gone & set(_hashes(record.read_bytes())):
                record.unlink()
        # The list of a folder goes first: a kill must not leave a list whose files are gone.
        for name in sorted(gone, key=lambda name: not name.endswith(FOLDER_ENDING)):
            place(cache.objects, name).unlink(missing_ok=True)
    except OSError as error:
        raise MachineError(
            "Q-DOCTOR-003",
            f"{error.filename} can't be deleted ({error.strerror}): correct the folder's rights, then run "
            "the same command again",
        ) from error


def _needed(cache: Cache, keep: int) -> set[str]:
    texts = [*_working_tree(cache.root), *_recorded(cache, keep)]
    if cache.in_git:
        texts += _committed(cache.root, keep)
    needed = {name for text in texts for name in _hashes(text)} | _linked(cache)
    for name in [name for name in needed if name.endswith(FOLDER_ENDING)]:
        path = place(cache.objects, name)
        files = listing(cache.objects, name)
        if not files and path.is_file() and path.read_bytes() != EMPTY:
            raise DataError(
                "Q-DOCTOR-004",
                f"{path} is damaged, so it is unknown which files it needs, and nothing is deleted: `quench "
                "model verify` sets it aside",
            )
        needed.update(entry["md5"] for entry in files)
    return needed


def _hashes(text: bytes) -> list[str]:
    return [name.decode() for name in HASH.findall(text)]


def _names_outputs(name: str) -> bool:
    return name.startswith("dvc.lock") or name.endswith(".dvc")


def _working_tree(root: Path) -> Iterator[bytes]:
    """Yield the text of each file of DVC's in the working tree, also of a `dvc.lock` that was set aside."""
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in NOT_SEARCHED]
        for name in filter(_names_outputs, names):
            yield Path(folder, name).read_bytes()


def _linked(cache: Cache) -> set[str]:
    """Return the objects that links in the working tree point to."""
    linked = set()
    for folder, inner, names in os.walk(cache.root):
        inner[:] = [name for name in inner if name not in NOT_SEARCHED]
        for name in names:
            path = Path(folder, name)
            if path.is_symlink():
                target = path.readlink()
                linked.add(target.parent.name + target.name)
    return linked


def _committed(root: Path, keep: int) -> Iterator[bytes]:
    """Yield the text of each file of DVC's in Git's index and in the commits that are kept."""
    listed = _git(root, "ls-files", "--stage", "-z").split("\0")
    for commit in {*_tips(root), *_last(root, keep)}:
        # The project's folder may have been elsewhere in the repository then.
        listed += _git(root, "ls-tree", "-r", "-z", "--full-tree", commit).split("\0")
    blobs = set()
    for entry in listed:
        about, _, path = entry.partition("\t")
        if _names_outputs(path.rpartition("/")[2]):
            blobs.add(BLOB.findall(about)[0])
    for blob in sorted(blobs):
        yield _git(root, "cat-file", "blob", blob).encode(errors="surrogateescape")


def _tips(root: Path) -> Iterator[str]:
    """Yield the commits of branches, tags, experiments and stashes."""
    kinds = "%(objectname) %(objecttype) %(*objecttype)"
    for line in _git(root, "for-each-ref", f"--format={kinds}").splitlines():
        tip, *types = line.split()
        if types[-1] != "blob":
            yield tip
    # A stash keeps Git's index and the untracked files in parents of its own.
    yield from _git(root, "stash", "list", "--format=%H %P").split()


def _last(root: Path, keep: int) -> list[str]:
    """Return the commit that is checked out, and the last ones that changed the record."""
    if not _git(root, "rev-list", "--all", "--max-count=1"):  # Nothing is committed yet.
        return []
    last = _git(root, "log", "--format=%H", f"--max-count={keep}", "--", "dvc.lock").split()
    return [*_git(root, "rev-parse", "HEAD").split(), *last]


def _git(root: Path, *words: str) -> str:
    """Return what Git prints. Raises `ToolError` if it fails, because then it is unknown what is needed."""
    try:
        said = ask_git(root, *words)
        why = f"it has nothing for `git {words[0]}` in {root.resolve()}"
    except ToolError as error:
        said = None
        why = error.sentence
    if said is None:
        raise ToolError("Q-DOCTOR-005", f"Git can't say what its commits need, so nothing is deleted: {why}")
    return said.decode(errors="surrogateescape")


def _records(cache: Cache) -> list[Path]:
    return [path for path in cache.runs.glob("*/*/*") if RUN.fullmatch(path.name)]


def _recorded(cache: Cache, keep: int) -> Iterator[bytes]:
    """Yield the newest `keep` records of each command that ran."""
    by_command = defaultdict(list)
    for record in _records(cache):
        text = record.read_bytes()
        command = COMMAND.search(text)
        by_command[command[1] if command else text].append((record.stat().st_mtime_ns, text))
    for records in by_command.values():
        yield from (text for _, text in sorted(records, reverse=True)[:keep])
