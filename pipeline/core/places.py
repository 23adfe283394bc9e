"""The locations of Quench's own files: in a checkout of its repository, or in an environment with the wheel.

A checkout has the files next to the package (recipes/, graphs/, profiles/, …) in its own folder. The wheel
has copies of them below `pipeline/resources` (pyproject.toml, `force-include`). A lock file is one of these,
and `lines_of` returns what it pins.
"""

import os
import re
import sys
from pathlib import Path

from pipeline.core.errors import IS_CHECKOUT as IS_CHECKOUT
from pipeline.core.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
PROJECT = PACKAGE.parent  # the checkout, or the environment's site-packages folder
RESOURCES = PACKAGE / "resources"
OFF = ("off", "0", "no", "")  # values of QUENCH_CACHE that turn the cache off


def resource(name: str) -> Path:
    """Return a file or folder of the repository that the wheel has too: "recipes", "graphs/stages.yaml",
    ".gitignore" (without its dot in the wheel).
    """
    return PROJECT / name if IS_CHECKOUT else RESOURCES / name.removeprefix(".")


def scratch(stage: str) -> Path:
    """Return the folder in a project in which a stage's jobs work, a subfolder each.

    Neither Snakemake nor DVC looks there.
    """
    return Path(f"models/.{stage}")


def lines_of(package: str, lock: str) -> str:
    """Return the requirement of one package with its hashes, cut from a lock file's text; "" if missing.

    It is in the form that pip reads.
    """
    pinned = re.search(rf"^{re.escape(package)}==.*(?:\n[ \t].*)*", lock, re.MULTILINE)
    return pinned[0] + "\n" if pinned else ""


def user_cache() -> Path | None:
    """Return the user's cache folder: `$QUENCH_CACHE`, or `$XDG_CACHE_HOME/quench`, or `~/.cache/quench`.

    Return None if the user wants none (`QUENCH_CACHE=off`) or has no home. Raises as `expanded`.
    """
    chosen = os.environ.get("QUENCH_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if chosen is not None:
        return None if chosen.lower() in OFF else expanded(chosen, "QUENCH_CACHE").absolute()
    try:
        if not base.is_absolute():  # XDG says that a relative path is ignored.
            base = Path.home() / ".cache"
        return base / "quench"
    except RuntimeError:
        return None


def expanded(path: str | Path, named: str) -> Path:
    """Return a path that may begin with `~` or `~user` with the home folder in its place.

    `named` is the setting that contains the path. Raises `ConfigError` if the machine knows no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            "Q-CORE-011", f"{named} is {str(path)!r}, and there is no such user here: name the folder itself"
        ) from None


def own_folder() -> Path:
    """Return the folder for what belongs to the installation and not to a project.

    In a checkout it is next to the code. Otherwise it is in the user's cache, for all projects, or in the
    environment if there is no cache.
    """
    return PROJECT if IS_CHECKOUT else user_cache() or Path(sys.prefix) / "share" / "quench"
