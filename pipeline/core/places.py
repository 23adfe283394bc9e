"""Where Quench itself lies: in a checkout of its repository, or in an environment that a wheel was installed
in.

A checkout has the files beside the package (recipes/, graphs/, profiles/, …) in its own folder; the wheel has
copies of them below `pipeline/resources` (pyproject.toml, `force-include`). Of a lock file, which is one of
these, `lines_of` says what it pins.
"""

import os
import re
import sys
from pathlib import Path

from pipeline.core.errors import IS_CHECKOUT as IS_CHECKOUT
from pipeline.core.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
PROJECT = PACKAGE.parent  # the checkout, or the environment's folder of packages
RESOURCES = PACKAGE / "resources"
OFF = ("off", "0", "no", "")  # values of QUENCH_CACHE that turn the cache off


def resource(name: str) -> Path:
    """A file or folder of the repository that the wheel has too: "recipes", "graphs/stages.yaml",
    ".gitignore", which has no dot in the wheel.
    """
    return PROJECT / name if IS_CHECKOUT else RESOURCES / name.removeprefix(".")


def scratch(stage: str) -> Path:
    """Where a stage's jobs work in a project, a folder each: neither Snakemake nor DVC looks there."""
    return Path(f"models/.{stage}")


def lines_of(package: str, lock: str) -> str:
    """The requirement of one package with its hashes, as pip reads it, cut out of a lock file's text; "" if
    it is not in it.
    """
    pinned = re.search(rf"^{re.escape(package)}==.*(?:\n[ \t].*)*", lock, re.MULTILINE)
    return pinned[0] + "\n" if pinned else ""


def user_cache() -> Path | None:
    """The user's cache folder: `$QUENCH_CACHE`, else `$XDG_CACHE_HOME/quench`, else `~/.cache/quench`; None
    if the user wants none (`QUENCH_CACHE=off`), or has no home. Raises as `expanded`.
    """
    chosen, base = os.environ.get("QUENCH_CACHE"), Path(os.environ.get("XDG_CACHE_HOME", ""))
    if chosen is not None:
        return None if chosen.lower() in OFF else expanded(chosen, "QUENCH_CACHE").absolute()
    try:
        # XDG: a relative path is ignored
        return (base if base.is_absolute() else Path.home() / ".cache") / "quench"
    except RuntimeError:
        return None


def expanded(path: str | Path, named: str) -> Path:
    """A path that may begin with `~` or `~user`, without that; `named` is where the user wrote it. Raises
    `ConfigError` if the machine knows no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            "Q-CORE-011", f"{named} is {str(path)!r}, and there is no such user here: name the folder itself"
        ) from None


def own_folder() -> Path:
    """Where Quench keeps what belongs to the installation and not to a project: in a checkout beside the
    code; else in the user's cache, for all projects; in the environment if there is none.
    """
    return PROJECT if IS_CHECKOUT else user_cache() or Path(sys.prefix) / "share" / "quench"
