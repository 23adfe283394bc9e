"""The table of extras: the only place that ties them to the core, which loads them by these names.

The module of a verb of its own (judge, remote, watch) has the command line: `app`. The others have the
functions that the verb or stage calls. A stage `compare_nf4` has its module next to that of stage compare.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = __name__.rpartition(".")[0]


class Extra(NamedTuple):
    """An extra: the places in the core that use it, and what is its own."""

    module: str  # module in `pipeline.extras` that the core loads
    page: str  # its page of the documentation
    verb: str = ""  # verb of `quench` that uses it
    stage: str = ""  # stage that it is, or that uses it
    setting: str = ""  # setting that asks for it, if it only observes a stage
    pip: str = ""  # extra of the distribution (`quench[NAME]`) that it needs
    imports: str = ""  # the package of that extra that it imports


EXTRAS: Mapping[str, Extra] = {
    "sweep": Extra("sweep.command", "docs/sweeps.md", verb="run sweep", pip="sweep", imports="optuna"),
    "remote": Extra("remote.verb", "docs/remote.md", verb="remote"),
    "watch": Extra("watch.verb", "docs/watching.md", verb="watch", pip="watch", imports="textual"),
    "judge": Extra("judge.verb", "docs/judging.md", verb="judge"),
    "pairs": Extra("pairs.command", "docs/rewards.md", verb="data pairs"),
    "harness": Extra("harness.run", "docs/evaluation.md", stage="evaluate", pip="harness", imports="lm_eval"),
    "signing": Extra(
        "signing.signature", "docs/shipping.md", verb="ship", pip="signing", imports="model_signing"
    ),
    "publish": Extra("publish.delivery", "docs/shipping.md", verb="ship"),
    "runs": Extra("runs.command", "docs/workflow.md", verb="status"),
    "compare": Extra("compare.stage", "docs/which-way-to-ship.md", stage="compare"),
    "distill": Extra("distill.stage", "docs/methods.md", stage="distill"),
    "trackers": Extra("trackers.tracking", "docs/training.md", setting="train.report_to"),
    "manual": Extra("manual.command", "docs/tutorial.md", verb="doctor docs", pip="docs", imports="zensical"),
}


def load_extra(name: str) -> ModuleType:
    """Import the module of an extra."""
    return importlib.import_module(f"{ROOT}.{EXTRAS[name].module}")


def own_verbs() -> list[str]:
    """Return the extras that are a verb of their own."""
    return [name for name, extra in EXTRAS.items() if extra.verb == name]


def graph_files() -> list[Path]:
    """Return the graphs of extras that are stages: `stages.yaml` next to the module."""
    folder = Path(__file__).parent
    packages = filter(None, map(stage_package, EXTRAS))
    return [folder / package.removeprefix(f"{ROOT}.") / "stages.yaml" for package in packages]


def stage_package(stage: str) -> str | None:
    """Return the package of a stage that is an extra; None for a stage of the core."""
    extra = EXTRAS.get(stage)
    return f"{ROOT}.{extra.module.rpartition('.')[0]}" if extra and extra.stage == stage else None


def modules_used_by(stage: str) -> list[str]:
    """Return the modules of extras that a stage loads while it runs."""
    return [
        f"{ROOT}.{extra.module}" for name, extra in EXTRAS.items() if extra.stage == stage and name != stage
    ]
