"""The table of extras: the only place that ties them to the core, which loads them by these names.

The module of a verb of its own (judge, remote) has the command line: `app`. The others have the functions
that the verb or stage calls. A stage `compare_nf4` has its module next to that of stage compare.
"""

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import NamedTuple

ROOT = __name__.rpartition(".")[0]


class Extra(NamedTuple):
    """Where an extra is used, and what is its own."""

    module: str  # module in `pipeline.extras` that the core loads
    page: str  # its page of the documentation
    verb: str = ""  # verb of `quench` that uses it
    stage: str = ""  # stage that it is, or that uses it
    pip: str = ""  # extra of the distribution (`quench[NAME]`) that it needs


EXTRAS: Mapping[str, Extra] = {
    "sweep": Extra("sweep.command", "docs/sweeps.md", verb="run sweep", pip="sweep"),
    "remote": Extra("remote.verb", "docs/remote.md", verb="remote"),
    "judge": Extra("judge.verb", "docs/judging.md", verb="judge"),
    "pairs": Extra("pairs.command", "docs/methods.md", verb="data pairs"),
    "nf4": Extra("nf4.command", "docs/training.md", verb="model nf4"),
}


def load_extra(name: str) -> ModuleType:
    """Import the module of an extra."""
    return importlib.import_module(f"{ROOT}.{EXTRAS[name].module}")


def own_verbs() -> list[str]:
    """Return the extras that are a verb of their own."""
    return [name for name, extra in EXTRAS.items() if extra.verb == name]
