"""Sizes and dates of files, which show an edit without reading them."""

import os
from collections.abc import Iterable
from pathlib import Path


def files_below(path: Path) -> list[Path]:
    """Return `path` if it is a file, otherwise all files below it, without pipes and devices."""
    files = [path]
    if path.is_dir():
        files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    return [file for file in files if file.is_file()]


def stamps(paths: Iterable[Path], root: Path) -> dict[str, list[int]]:
    """Return {file relative to `root`: its size and date} of these files, and of all below these folders.

    They show an edit of the user's files without reading them.
    """
    files = {os.path.relpath(file, root): file.stat() for path in paths for file in files_below(path)}
    return {name: [state.st_size, state.st_mtime_ns] for name, state in files.items()}
