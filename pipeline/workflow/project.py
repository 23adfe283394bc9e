"""A project: a folder of data and settings that contains no code, created by `quench new`.

Its stages are the installed Quench's. The keys of their code, and the version that wrote them, are in the
project's Git: another version runs nothing there until `quench doctor upgrade` has updated the keys. A
checkout of Quench's repository is not a project in this sense: there, keys follow the code at every start.
"""

import re
from importlib.machinery import PathFinder
from importlib.metadata import version
from pathlib import Path

from pipeline.config.params import Read, read_params
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.publish import need_folder, write_text
from pipeline.core.text import safe
from pipeline.workflow.keys.code_keys import FOLDER, key_file, write_keys
from pipeline.workflow.keys.imports import ROOT as PACKAGE
from pipeline.workflow.keys.imports import Package
from pipeline.workflow.stages import code_of_stages

VERSION_FILE = f"{FOLDER}/version"
# DVC puts the path into a template for `str.format`, and into files in UTF-8.
UNUSABLE = re.compile(r"[{}\udc80-\udcff]")


def need_usable_path(root: Path) -> None:
    """Raise `ConfigError` if `root` is a DVC project in whose folder DVC fails, because of its path."""
    if (root / ".dvc").is_dir():
        check_path(root.resolve())


def check_path(folder: Path) -> None:
    """Raise `ConfigError` if DVC would fail in `folder`, an absolute path."""
    unusable = UNUSABLE.search(str(folder))
    if unusable:
        what = f'"{unusable[0]}"' if unusable[0] in "{}" else "a byte that is not UTF-8"
        raise ConfigError(
            "Q-WORKFLOW-026",
            f"{safe(str(folder))} has {what} in its path, with which DVC fails: choose another name or place",
        )


def need_no_namesake(root: Path) -> None:
    """Raise `ConfigError` if a project has a module of its own called `pipeline`.

    DVC runs `python -m pipeline` in this folder, and so would a user: Python takes what is there.
    """
    found = PathFinder.find_spec(PACKAGE, [str(root.resolve())]) if is_project(root) else None
    if found and found.origin:  # A folder without __init__.py hides no package.
        raise ConfigError(
            "Q-WORKFLOW-027",
            f"{safe(found.origin)} would run in the place of every stage, as `python -m {PACKAGE}`: give it "
            "another name, or move it out of this folder",
        )


def is_project(root: Path) -> bool:
    """Return True if `quench new` created `root`."""
    return (root / VERSION_FILE).is_file()


def refresh_keys(root: Path) -> list[str]:
    """Write the keys of the current code. Return the stages with changed keys.

    Raises `ConfigError` in a project if they differ, because only an upgrade may write them there.
    """
    if not is_project(root):
        return write_keys(root, code_of_stages())
    changed = changed_code(root)
    if changed:
        raise ConfigError(
            "Q-WORKFLOW-023",
            f"{root.resolve()} is of Quench {version_of(root)}, and the installed {installed_version()} has "
            f"other code for {', '.join(changed)}: `quench doctor upgrade` says what would run again before "
            "it takes the project over",
        )
    return []


def write_code(root: Path) -> None:
    """Write the keys of all stages' code: DVC's first stage. Raises what `refresh_keys` does."""
    need_folder(root)
    changed = refresh_keys(root)
    print(f"code has changed of {', '.join(changed)}" if changed else "no stage's code has changed")


def read_settings(root: Path) -> Read:
    """Return `root`/params.yaml.

    Raises `ConfigError`. It mentions if the project has another version, which may have keys that this one
    doesn't know.
    """
    try:
        return read_params(root / "params.yaml")
    except ConfigError as error:
        if not is_project(root) or version_of(root) == installed_version():
            raise
        raise ConfigError(
            error.id,
            f"{error.sentence}; but this project is of Quench {version_of(root)}, {installed_version()} is "
            "installed: correct the settings and run `quench doctor upgrade`, or install that version",
        ) from error


def take_over(root: Path) -> None:
    """Write the keys of the installed code into `root`, and the installed version."""
    write_keys(root, code_of_stages())
    write_text(root / VERSION_FILE, f"{installed_version()}\n")


def changed_code(root: Path) -> dict[str, list[str]]:
    """Return {stage: files of the package} in which the installed code differs from the keys of `root`.

    A new stage has all its files. Raises `DataError` if a key can't be read.
    """
    package = Package()
    changed: dict[str, list[str]] = {}
    for stage, modules in code_of_stages().items():
        file = root / key_file(stage)
        now = package.key(*modules)
        try:
            before = file.read_text(encoding="utf-8") if file.is_file() else ""
        except (OSError, ValueError) as error:
            raise DataError(
                "Q-WORKFLOW-024",
                f"{file} can't be read ({error}): `git checkout {key_file(stage)}` brings it back",
            ) from error
        if before != now:
            differing = set(before.splitlines()) ^ set(now.splitlines())
            changed[stage] = sorted({line.partition(" ")[2] for line in differing})
    return changed


def version_of(root: Path) -> str:
    """Return the version with which `root` was created or last upgraded."""
    return (root / VERSION_FILE).read_text(encoding="utf-8").strip()


def installed_version() -> str:
    """Return this Quench's version."""
    return version("quench")
