"""Snakemake's cache of sources, which it makes below the user's home before it reads a Snakefile.

Where that can't be written (a container's home), it is made in the project. Only Snakemake is told so: stages
may read what is in the home's cache.
"""

import os
import tempfile
from pathlib import Path

VARIABLE = "XDG_CACHE_HOME"
PLACE = Path(".snakemake/cache")
_before: dict[str, str] = {}  # the variable as it was, while it is another one


def trouble() -> str | None:
    """Return the reason why Snakemake can't write its cache where it wants to; None if it can."""
    folder = Path(os.environ.get(VARIABLE) or os.path.expanduser("~/.cache"), "snakemake")  # noqa: PTH111
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder} can't be written: {error.strerror}"


def use_project() -> None:
    """Let Snakemake make its cache in the project, the current folder, if it can't be made in the home."""
    if trouble():
        _before.update({VARIABLE: os.environ.get(VARIABLE, "")})
        os.environ[VARIABLE] = str(PLACE.absolute())


def use_home() -> None:
    """Undo `use_project`, once Snakemake has its cache."""
    if _before:
        os.environ.pop(VARIABLE)
        os.environ.update({name: value for name, value in _before.items() if value})
        _before.clear()
