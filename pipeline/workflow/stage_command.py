"""The command line of a stage: the names of its jobs, and the options."""

import argparse
import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.core.errors import ConfigError
from pipeline.core.text import safe
from pipeline.workflow.graph_source import graph_source

if TYPE_CHECKING:
    from pipeline.config.params import Params

FIRST = "base"  # the stage that every graph begins with


class StageCommand(Protocol):
    """The module `command` of a stage that is told more than its settings: by options of its own."""

    @property
    def Options(self) -> Any:
        """The class of what the stage is told."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options to the parser of `python -m pipeline`."""

    def read_options(self, arguments: argparse.Namespace) -> Any:
        """Return the options that were given, as `Options`."""

    def misuse(self, options: Any) -> str:
        """Return why an option that was given is for no other stage, as half a sentence; "" if none was."""

    def check(self, params: "Params", root: Path, options: Any) -> None:
        """Check what can be checked before the stage's libraries are imported. Raises `QuenchError`."""


def parsed(stage: str) -> tuple[str, str]:
    """Return the stage's name, and the level or model after its "@" ("" without).

    Raises `ConfigError` if it is not a stage.
    """
    from pipeline.workflow.stages import table

    name, _, item = stage.partition("@")
    need_stage(name)
    each = table().stages[name].each
    if bool(each) != bool(item):
        form = f"{name}@NAME, {name}@F16 for example" if each else f"just {name}"
        raise ConfigError("Q-WORKFLOW-019", f"{stage!r} is not how stage {name} is named: write {form}")
    if item and not re.fullmatch(r"[\w.-]{1,100}", item):  # The item is part of file names.
        raise ConfigError(
            "Q-WORKFLOW-019",
            f"{safe(item, 80)} is not the name of a level or a model: write {name}@F16 for example",
        )
    return name, item


def need_stage(name: str) -> None:
    """Raise `ConfigError` if no stage is called `name`, with the closest one and all that exist."""
    from pipeline.workflow.stages import table

    stages = list(table().stages)
    if name not in stages:
        near = difflib.get_close_matches(name, stages, n=1)
        hint = f"did you mean {near[0]}? The stages are" if near else "the stages are"
        raise ConfigError(
            "Q-WORKFLOW-019", f"no stage is called {safe(name, 80)!r}: {hint} {', '.join(stages)}"
        )


def need_work(name: str, item: str, params: "Params") -> None:
    """Raise `ConfigError` if a stage has nothing to do with these settings."""
    from pipeline.workflow.stages import asked_by, items_of, table, values_of

    stage = table().stages[name]
    if stage.only not in (None, params.graph):
        raise ConfigError(
            "Q-WORKFLOW-021",
            f"stage {name} has nothing to do if base.quantization is {params.base.quantization} and "
            f"train.tuner is {params.train.tuner}: `snakemake` runs those that have",
        )
    if stage.when and name not in asked_by(params):
        raise ConfigError("Q-WORKFLOW-021", f"stage {name} has nothing to do: {stage.when.otherwise}")
    if stage.chosen_by and item not in dict(items_of(stage.each, values_of(params))):
        raise ConfigError(
            "Q-COMPARE-001",
            f"{stage.chosen_by} ask for no job {name}@{item}: `snakemake -n` lists the jobs",
        )


def idle_of(stage: str, params: "Params") -> Iterator[str]:
    """Yield a sentence on each setting in the section of `stage` ("quantize") that has no effect.

    The first stage also reports sections that have no stage in this graph.
    """
    from pipeline.config.conditions import idle
    from pipeline.workflow.stages import stages_in

    stages = stages_in(params)
    for setting in idle(params):
        section = setting.key.partition(".")[0]
        reporting_stage = section if section in stages else FIRST
        if stage == reporting_stage:
            yield str(setting)


def parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m pipeline`."""
    options = argparse.ArgumentParser(
        prog="python -m pipeline",
        description="Run one stage.",
        epilog="example: python -m pipeline quantize@Q4_K_M",
    )
    options.add_argument(
        "stage",
        metavar="STAGE",
        nargs="?",
        help=f"{', '.join(graph_source()['stages'])}; some take an item: quantize@Q4_K_M",
    )
    options.add_argument(
        "--params", type=Path, metavar="FILE", help="configuration (default: ROOT/params.yaml)"
    )
    options.add_argument(
        "--root",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder that holds data/, models/, reports/ (default: this one)",
    )
    return options
