"""The graph of stages, from its one source (`pipeline.workflow.graph_source`). The settings say which of the
stages a project has.

The Snakefile makes its rules from `rules`; `pipeline.workflow.dvc_yaml` makes dvc.yaml from it.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, product
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, field_validator

from pipeline.config.methods import METHODS
from pipeline.config.params import Params
from pipeline.config.params_text import value_at
from pipeline.config.sections import Graph
from pipeline.core.extras import modules_used_by
from pipeline.workflow.graph_source import LAST, graph_source
from pipeline.workflow.keys.code_keys import (
    PAGES,
    SETTINGS,
    SETTINGS_MODULES,
    key_files,
    method_module,
    stage_module,
)

DERIVED = "derived"  # section of values that are derived from several settings
ALL = "all"  # threads: every core that Snakemake has


class Part(BaseModel):
    """The inputs and parameters that a stage has in one graph only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    deps: list[str] = []
    params: list[str] = []

    @field_validator("deps", "params", mode="before")
    @classmethod
    def items(cls, given: list[str | list[str]]) -> list[str]:
        """Return the items of a list.

        Stages share the items of a list in it. A folder that another stage writes loses its slash.
        """
        lists = [inner if isinstance(inner, list) else [inner] for inner in given]
        return [name.rstrip("/") for names in lists for name in names]


class When(BaseModel):
    """The setting that asks for a stage, and what is said if it is empty or 0."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    setting: str
    otherwise: str


class Stage(Part):
    """A stage as it is in the table."""

    uncached: list[str] = []
    outs: list[str] = []
    metrics: list[str] = []
    plots: dict[str, dict[str, str]] = {}
    each: str | Mapping[str, str] | None = None
    threads: str | None = None
    starts: list[str] = []
    scratch: bool = False
    methods: list[str] = []
    only: Graph | None = None
    when: When | None = None
    chosen_by: str = ""
    merged: Part = Part()
    adapter: Part = Part()
    tuned: Part = Part()

    def within(self, graph: Graph) -> "Stage":
        """Return the stage with the part that it has only in `graph`."""
        part: Part = getattr(self, graph)
        return self.model_copy(
            update={"deps": [*self.deps, *part.deps], "params": [*self.params, *part.params]}
        )

    @property
    def written(self) -> list[str]:
        """All outputs; folders end in a slash."""
        return [*self.uncached, *self.outs, *self.metrics, *self.plots]


class Plot(BaseModel):
    """A plot of `dvc plots show`, as in dvc.yaml: the column of each file that is drawn on each axis."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    template: str | None = None
    x: str | dict[str, str]
    y: dict[str, str | list[str]]
    x_label: str | None = None
    y_label: str | None = None


class Table(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stages: dict[str, Stage]
    plots: list[dict[str, Plot]]


class Rule(NamedTuple):
    """A stage for Snakemake; `items` are its wildcards, each with a regular expression."""

    name: str
    stage: str
    code: list[str]
    deps: list[str]
    files: list[str]
    folders: list[str]
    items: dict[str, str]
    threads: int
    log: str


@dataclass(frozen=True)
class Values:
    """Settings, for the `${dotted.key}`s of paths in the table and in dvc.yaml; `${item}` is a job's own."""

    settings: Mapping[str, Any]

    def of(self, item: Any) -> "Values":
        """Return the values for the job of `item`, a value or several by name."""
        return Values({**self.settings, "item": item})

    def at(self, key: str) -> Any:
        """Return the value of a dotted key, None if there is none."""
        return value_at(self.settings, tuple(key.split(".")))

    def fill(self, text: str) -> str:
        """Return `text` with each of its keys replaced by its value."""
        return re.sub(r"\$\{([\w.]+)\}", lambda key: str(self.at(key[1])), text)


def values_of(params: Params) -> Values:
    """Return the settings `params`, and the values that are derived from several of them."""
    return Values({**params.model_dump(mode="json"), DERIVED: params.derived})


@cache
def table() -> Table:
    """Return the graph's source, parsed."""
    return Table.model_validate(graph_source())


@cache
def users() -> tuple[str, ...]:
    """Return the folders that the user fills: stages read them, none writes there."""
    stages = table().stages.values()
    written = {path.rstrip("/") for stage in stages for path in stage.written}
    read = {dep for stage in stages for dep in stage.deps if dep.startswith("data/")}
    return tuple(sorted(read - written))


def stages_in(params: Params) -> dict[str, Stage]:
    """Return the stages that the settings ask for."""
    return stages_of(params.graph, asked_by(params))


def asked_by(params: Params) -> list[str]:
    """Return the optional stages (`when` in the table) of the graph that the settings ask for."""
    values = values_of(params)
    return [name for name, when in optional(params.graph).items() if values.at(when.setting)]


def optional(graph: Graph) -> dict[str, When]:
    """Return the stages of one graph that are there only if a setting asks for them, and which setting."""
    return {name: stage.when for name, stage in _all_of(graph).items() if stage.when}


def stages_of(graph: Graph, asked: Collection[str]) -> dict[str, Stage]:
    """Return the stages of one graph with those of the optional ones that are `asked` for.

    Inputs that only the other optional ones write are left out.
    """
    stages = _all_of(graph)
    left_out = [name for name in optional(graph) if name not in asked]
    unwritten = {path.rstrip("/") for name in left_out for path in stages[name].written}
    return {
        name: stage.model_copy(update={"deps": [dep for dep in stage.deps if dep not in unwritten]})
        for name, stage in stages.items()
        if name not in left_out
    }


@cache
def _all_of(graph: Graph) -> dict[str, Stage]:
    return {
        name: stage.within(graph) for name, stage in table().stages.items() if stage.only in (None, graph)
    }


def stage_modules(stage: str) -> list[str]:
    """Return the modules that `stage` starts from: its own, those of extras that it uses and those of what it
    runs as processes.
    """
    stages = table().stages
    starts = stages[stage].starts if stage in stages else []
    return [stage_module(stage), *modules_used_by(stage), *chain.from_iterable(map(stage_modules, starts))]


def code_of_stages() -> dict[str, list[str]]:
    """Return {name of a key: the modules that it starts from}.

    It has the stages of all graphs, each method of training ("train.grpo"), and the stage that writes the
    settings in effect.
    """
    stages = {name: stage_modules(name) for name in table().stages}
    methods = {f"train.{method}": [method_module(method)] for method in METHODS}
    last = [*stages[LAST], PAGES]
    return stages | methods | {LAST: last, SETTINGS: [*SETTINGS_MODULES]}


def rules(params: Params, cores: int) -> Iterator[Rule]:
    """Yield the rules of the graph that `params` need, with names and levels filled in."""
    values = values_of(params)
    stages = stages_in(params)
    written = [path for stage in stages.values() for path in filled(stage.written, stage, values)]
    for name, stage in stages.items():
        lists = lists_of(stage.each, values)
        if not all(lists.values()):
            continue  # augment.kinds is []: no such job
        ending = "-".join(f"{{{key}}}" for key in lists)
        item = {key: f"{{{key}}}" for key in lists}
        of_job = values.of(item if isinstance(stage.each, Mapping) else ending)
        outputs = [of_job.fill(path) for path in stage.written]
        inputs = [path for dep in stage.deps for path in _inside(of_job.fill(dep), written)]
        yield Rule(
            name,
            f"{name}@{ending}" if ending else name,
            [of_job.fill(path) for path in key_files(name, stage.methods)],
            inputs,
            [path for path in outputs if not path.endswith("/")],
            [path.rstrip("/") for path in outputs if path.endswith("/")],
            {key: "|".join(map(str, items)) for key, items in lists.items()},
            _threads(stage.threads, values, cores),
            f"logs/{name}-{ending}.log" if ending else f"logs/{name}.log",
        )


def lists_of(each: str | Mapping[str, str | list[Any]] | None, values: Values) -> dict[str, list[Any]]:
    """Return the lists for whose values, or their combinations, a stage has a job each; {} if it is one job.

    `each` is as in the table, or as `foreach` and `matrix` in dvc.yaml.
    """
    named: Mapping[str, str | list[Any]] = {}
    if isinstance(each, str):
        named = {"item": each}
    elif each is not None:
        named = each
    return {
        key: items if isinstance(items, list) else values.at(items.strip("${}"))
        for key, items in named.items()
    }


def items_of(each: str | Mapping[str, str | list[Any]] | None, values: Values) -> Iterator[tuple[str, Any]]:
    """Yield (text after "@" in a job's name, `${item}` in its paths) for each job of a stage.

    It is ("", None) if there is only one.
    """
    lists = lists_of(each, values)
    for combination in product(*lists.values()):
        item: Any = next(iter(combination), None)
        if isinstance(each, Mapping):
            item = dict(zip(lists, combination, strict=True))
        yield "-".join(map(str, combination)), item


def filled(paths: Sequence[str], stage: Stage, values: Values) -> Iterator[str]:
    """Yield `paths` of a stage (`written`, `deps`) as all of its jobs have them under the settings `values`.

    Folders end in a slash.
    """
    for _, item in items_of(stage.each, values):
        yield from map(values.of(item).fill, paths)


def _inside(dep: str, written: list[str]) -> list[str]:
    """Return `dep`, or the files that stages write into it if it is a folder that stages only write into.

    It is empty if it is the folder of jobs that don't exist now.
    """
    collects = dep in {
        path.rstrip("/").rpartition("/")[0] for stage in table().stages.values() for path in stage.written
    }
    files = [path.rstrip("/") for path in written if path.startswith(f"{dep}/") and path != f"{dep}/"]
    return files if collects else [dep]


def _threads(wanted: str | None, values: Values, cores: int) -> int:
    if wanted == ALL:
        return cores
    return int(values.at(wanted)) if wanted else 1
