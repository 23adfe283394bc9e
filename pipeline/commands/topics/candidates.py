"""Candidates of shell completion, which the options and arguments of commands name (`autocompletion=`).

They are read from the project in the folder, else from Quench's own files. A key is offered with its value,
to be edited. Nothing here needs PyTorch, and a project that can't be read offers nothing instead of an error.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pipeline.config.choices import choices, typed

Candidates = Callable[[Any, list[str], str], list[str]]


def quiet(candidates: Callable[[Any, str], Iterable[str]]) -> Candidates:
    """Return `candidates` as Typer calls it. Whatever goes wrong, there is nothing to complete."""

    def offered(ctx: Any, args: list[str], incomplete: str) -> list[str]:
        try:
            return list(candidates(ctx, incomplete))
        except Exception:  # A traceback would be written over the line that is being typed.
            return []

    return offered


@quiet
def models(context: Any, incomplete: str) -> Iterable[str]:
    """Return the models that the project can serve."""
    from pipeline.commands.project import model_names
    from pipeline.config.params import load_params

    return model_names(load_params(_root(context) / "params.yaml"))


@quiet
def recipes(context: Any, incomplete: str) -> Iterable[str]:
    """Return the recipes."""
    from pipeline.core.places import resource

    return sorted(file.stem for file in resource("recipes").glob("*.yaml"))


@quiet
def keys(context: Any, incomplete: str) -> Iterable[str]:
    """Return the sections and the keys."""
    settings = _settings(_root(context))
    return [*settings, *_flat(settings)]


@quiet
def explained(context: Any, incomplete: str) -> Iterable[str]:
    """Return what `quench doctor explain` explains: reasons, areas and ids of errors."""
    from pipeline.core.catalog import catalog, left_out, reasons

    areas = sorted({problem.area for problem in catalog().values()})
    return [*{**reasons(), **left_out()}, *areas, *catalog()]


@quiet
def words_of_run(context: Any, incomplete: str) -> Iterable[str]:
    """Return stages and what extras run (sweep), or a key with its value after "train.", or the values that
    may follow "train.tuner=".
    """
    from pipeline.core.extras import words_after
    from pipeline.workflow.graph_source import graph_source

    root = _root(context)
    before = context.params.get("words") or []
    if before[-1:] == ["="]:  # Bash makes it a word of its own.
        return choices(before[-2])
    name, equals, _ = incomplete.partition("=")
    if equals:
        return [f"{name}={value}" for value in choices(name)]
    if "." in incomplete:
        return [f"{key}={value}" for key, value in _flat(_settings(root)).items()]
    return [*graph_source()["stages"], *words_after("run")]


def split_at_equals_signs() -> None:
    """Begin an empty word after "train.tuner=" in what Bash hands over. Bash replaces only what follows the
    sign, so the sign itself is no beginning of a candidate.
    """
    words = os.environ.get("COMP_WORDS", "").split("\n")
    place = os.environ.get("COMP_CWORD", "")
    if place.isdigit() and words[int(place) : int(place) + 1] == ["="]:
        os.environ["COMP_CWORD"] = str(int(place) + 1)


def _root(context: Any) -> Path:
    return context.params.get("root") or Path()


def _settings(root: Path) -> dict[str, Any]:
    """Return the settings in effect: those of the last run, which are read without the schema, else the
    defaults.
    """
    from pipeline.core.yaml_readers import read_fast

    file = root / "params.lock.yaml"
    if file.is_file():
        return dict(read_fast(file))
    from pipeline.config.params import Params

    return Params().model_dump(mode="json")


def _flat(settings: Any, section: str = "") -> dict[str, str]:
    """Return {dotted key: its value as it is typed}. A list or mapping is left empty, because a shell takes
    its brackets for its own.
    """
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{section}{name}.")
        else:
            found[f"{section}{name}"] = typed(value)
    return found
