"""Git LFS pointers: small text files that a clone without `git lfs` has in place of large files."""

from pathlib import Path

POINTER = b"version https://git-lfs.github.com/spec/"  # first bytes of every pointer
REMEDY = "`git lfs pull` in its clone fetches the file"


def is_pointer(path: Path) -> bool:
    """Return True if the file is a pointer. Raises `OSError` if it can't be read."""
    with path.open("rb") as file:
        return file.read(len(POINTER)) == POINTER
