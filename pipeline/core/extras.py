"""Extras: what each contributes to the core, and the places at which the core asks for it.

An extra is a package in `pipeline/extras/`. The `EXTRA` in its `__init__.py` says what it is, and its stages,
if it has any, are in its stages.yaml. The core names none: it asks by place. `quench run sweep` asks for the
provider of "run sweep", and says so if there is none. So an extra comes and goes with its folder.

The folder is read, not the metadata of the installation (entry points). Code runs where there is no metadata
(`quench remote` sends a copy), and where the metadata is older than the checkout. The keys of code
(`pipeline.workflow.keys.imports`) know the files of this package alone. Reading the metadata would also make
every start of `quench` a tenth longer. A distribution from elsewhere installs a folder in `pipeline/extras/`.
"""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError
from pipeline.core.places import PACKAGE

FOLDER = PACKAGE / "extras"
ROOT = "pipeline.extras"


@dataclass(frozen=True)
class Extra:
    """The contributions of an extra. Its modules are named as in its package: "verb" for `judge/verb.py`."""

    page: str  # its page of the documentation
    verbs: str = ""  # module whose Typer `app` has verbs of `quench`
    # {place: module that the core asks there}; "STAGE.KEY" is asked by the stage, others by `quench PLACE`
    provides: Mapping[str, str] = field(default_factory=dict)
    observer: str = ""  # module whose `observing(stage, params, root)` is the context of every stage
    settings: tuple[str, ...] = ()  # other settings that need it, if they are not empty
    pip: str = ""  # extra of the distribution (`quench[NAME]`) that it needs
    imports: str = ""  # the package of that extra that it imports


@cache
def extras() -> Mapping[str, Extra]:
    """Return the extras that are there, by the names of their folders."""
    names = sorted(file.parent.name for file in FOLDER.glob("*/__init__.py"))
    return {name: importlib.import_module(f"{ROOT}.{name}").EXTRA for name in names}


def verb_modules() -> list[Any]:
    """Return the modules that have verbs of their own."""
    return [_module(name, extra.verbs) for name, extra in extras().items() if extra.verbs]


def provider(place: str) -> Any:
    """Return the module of an extra that the core asks at `place`. Raises `ConfigError` if there is none."""
    for name, extra in extras().items():
        if place in extra.provides:
            return _module(name, extra.provides[place])
    raise missing(place if "." in place else f"`quench {place}`")


def words_after(verb: str) -> list[str]:
    """Return the words that extras add to a verb: ["sweep"] to "run"."""
    places = [place for extra in extras().values() for place in extra.provides]
    return [place.removeprefix(f"{verb} ") for place in places if place.startswith(f"{verb} ")]


def need_extra(setting: str) -> None:
    """Raise `ConfigError` if no extra serves a setting that needs one."""
    if not any(setting in (*extra.provides, *extra.settings) for extra in extras().values()):
        raise missing(setting)


def missing(asked: str) -> ConfigError:
    """Return the error for a verb, an option or a setting whose extra is not there."""
    return ConfigError(
        "Q-CORE-017", f"{asked} needs an extra that is not in {FOLDER}: put its folder there, or leave it out"
    )


@contextmanager
def observed(stage: str, params: Any, root: Path) -> Iterator[None]:
    """Run the body, which is the work of a stage below `root`, in the contexts of all observers."""
    with ExitStack() as contexts:
        for name, extra in extras().items():
            if extra.observer:
                contexts.enter_context(_module(name, extra.observer).observing(stage, params, root))
        yield


def graph_files() -> list[Path]:
    """Return the graphs of extras that are stages."""
    return sorted(FOLDER.glob("*/stages.yaml"))


def stage_package(stage: str) -> str | None:
    """Return the package of a stage that is an extra; None for a stage of the core."""
    return f"{ROOT}.{stage}" if FOLDER / stage / "stages.yaml" in graph_files() else None


def modules_used_by(stage: str) -> list[str]:
    """Return the modules of extras that a stage of the core asks while it runs."""
    return [
        f"{ROOT}.{name}.{module}"
        for name, extra in extras().items()
        for place, module in extra.provides.items()
        if place.startswith(f"{stage}.")
    ]


def _module(name: str, module: str) -> Any:
    return importlib.import_module(f"{ROOT}.{name}.{module}")
