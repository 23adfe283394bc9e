"""Contents of a project's files by md5, as DVC records them, and what DVC's cache has of them.

Ignored files are left out by the plain patterns of `.dvcignore`; others are not used in a project.
"""

import configparser
import fnmatch
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipeline.core.hashing import NO_PART
from pipeline.workflow.keys.stamps import files_below
from pipeline.workflow.state.dvc_project import FOLDER_ENDING, listing, place
from pipeline.workflow.state.hashes import Digests, Hashes
from pipeline.workflow.state.lockfile import folder_md5


class Contents:
    """The files below `root`, hashed once."""

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        self._root = root
        self._ignored = _patterns(root / ".dvcignore")
        self._cache = cache_folder(root)
        self._files = {path: [*self._below(root / path)] for path in sorted({*paths})}
        with Hashes(root) as hashes:
            every = {file for files in self._files.values() for file in files}
            self._digests: Digests = hashes.md5s(every)
            self.suspects = {file.relative_to(root).as_posix() for file in hashes.suspects}
        self._md5s: dict[str, str | None] = {}

    def md5(self, path: str) -> str | None:
        """Return the md5 of a file or folder; None if it is missing or was not looked at."""
        if path not in self._md5s:
            self._md5s[path] = self._now(path)
        return self._md5s[path]

    def cached(self, md5: str) -> Path | None:
        """Return the object of DVC's cache with this md5; None if it is not there."""
        file = place(self._cache, md5)
        return file if md5 and file.is_file() else None

    def restorable(self, md5: str) -> bool:
        """Return True if DVC's cache has a file, or a folder with all of its files."""
        if self.cached(md5) is None:
            return False
        return not md5.endswith(FOLDER_ENDING) or all(
            self.cached(entry["md5"]) for entry in listing(self._cache, md5)
        )

    def changed_files(self, path: str, md5: str | None) -> tuple[str, ...]:
        """Return the files in which a folder differs from the recorded one, if DVC's cache has its list."""
        if md5 is None or self.cached(md5) is None or not md5.endswith(FOLDER_ENDING):
            return ()
        folder = self._root / path
        before = {entry["relpath"]: entry["md5"] for entry in listing(self._cache, md5)}
        after = {
            file.relative_to(folder).as_posix(): self._digests.get(file) for file in self._files.get(path, [])
        }
        words = {True: "new", False: "gone"}
        return tuple(
            name if name in before and name in after else f"{name} {words[name in after]}"
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        )

    def _now(self, path: str) -> str | None:
        if path not in self._files or not (self._root / path).exists():
            return None
        if not (self._root / path).is_dir():
            return self._digests.get(self._root / path)
        return folder_md5(self._root / path, self._files[path], self._digests)

    def _below(self, path: Path) -> Iterator[Path]:
        for file in files_below(path):
            parts = file.relative_to(path).parts
            if file.name not in NO_PART and not any(self._is_ignored(part) for part in parts):
                yield file

    def _is_ignored(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._ignored)


def cache_folder(root: Path) -> Path:
    """Return the folder of DVC's objects, by the project's and the user's configuration of DVC."""
    home = os.environ.get("DVC_GLOBAL_CONFIG_DIR") or Path.home() / ".config" / "dvc"
    for folder, name in ((root / ".dvc", "config.local"), (root / ".dvc", "config"), (Path(home), "config")):
        reader = configparser.ConfigParser(interpolation=None)
        try:
            reader.read(folder / name, encoding="utf-8")
        except (configparser.Error, ValueError):
            continue  # DVC reports what is wrong with it.
        if chosen := reader.get("cache", "dir", fallback=None):
            return folder / chosen / "files" / "md5"
    return root / ".dvc" / "cache" / "files" / "md5"


def _patterns(file: Path) -> list[str]:
    """Return the patterns of a .dvcignore that are names, not paths."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    return [line.strip() for line in lines if line.strip() and line[0] != "#" and "/" not in line]
