"""The graph of stages, from its one source: `graphs/stages.yaml`, which says what its keys mean.

`rules` is what the Snakefile makes its rules from, `dvc_text` is dvc.yaml.
"""

import io
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from pipeline.config.params import Params
from pipeline.config.sections import Graph
from pipeline.config.text import value_at as value_of
from pipeline.core.strict_yaml import read_fast
from pipeline.llamacpp.tools import PROJECT
from pipeline.workflow.code_keys import CODE, FOLDER, ROOT, key_file, stage_module
from pipeline.workflow.syntax import content_hash

TABLE = PROJECT / "graphs" / "stages.yaml"
WORDS: dict[Graph, str] = {"merged": "merged models", "adapter": "adapters on a GGUF"}
ALL = "all"  # threads: every core that Snakemake has
HEADER = """\
# The graph of {graph} for DVC, written by `quench graph`: the stages are in graphs/{table}, as they are for Snakemake. Stage {code}
# writes a key for the code of every stage, so that `dvc repro` alone sees an edit of it. `quench graph` keeps edits of this file, which it knows
# by the hash of what follows: {digest}
"""


class Part(BaseModel):
    """What a stage has in one graph only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    deps: list[str] = []
    params: list[str] = []


Lists = Mapping[
    str, str | list[str]
]  # {name of a value: where params.yaml has a list of it, or the list itself}


class Stage(Part):
    """A stage as the table has it."""

    uncached: list[str] = []
    outs: list[str] = []
    metrics: list[str] = []
    plots: dict[str, dict[str, str]] = {}
    each: str | Lists | None = None
    threads: str | None = None
    starts: list[str] = []
    only: Graph | None = None
    merged: Part = Part()
    adapter: Part = Part()

    def within(self, graph: Graph) -> "Stage":
        """The stage with what it has in `graph` alone."""
        own: Part = getattr(self, graph)
        return self.model_copy(
            update={"deps": [*self.deps, *own.deps], "params": [*self.params, *own.params]}
        )

    @property
    def written(self) -> list[str]:
        """All outputs; folders end in a slash."""
        return [*self.uncached, *self.outs, *self.metrics, *self.plots]


class Table(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stages: dict[str, Stage]
    plots: list[dict[str, dict[str, Any]]]


class Rule(NamedTuple):
    """A stage for Snakemake; `items` are its wildcards, each with a regular expression."""

    name: str
    stage: str
    code: str
    deps: list[str]
    files: list[str]
    folders: list[str]
    items: dict[str, str]
    threads: int
    log: str


@cache
def table() -> Table:
    """The graph's source, read."""
    return Table.model_validate(read_fast(TABLE))


def stages_in(graph: Graph) -> dict[str, Stage]:
    """The stages of one graph."""
    return {
        name: stage.within(graph) for name, stage in table().stages.items() if stage.only in (None, graph)
    }


def stage_modules(stage: str) -> list[str]:
    """The modules that `stage` ("quantize@Q4_K_M") starts from: its own and those of the stages that it starts."""
    name = stage.partition("@")[0]
    return [stage_module(one) for one in (name, *table().stages[name].starts)]


def code_of_stages() -> dict[str, list[str]]:
    """{stage: the modules that it starts from}, for the stages of both graphs."""
    return {name: stage_modules(name) for name in table().stages}


def rules(params: Params, cores: int) -> Iterator[Rule]:
    """The rules of the graph that `params` need, with names and levels filled in."""
    values, stages = params.model_dump(mode="json"), stages_in(params.graph)
    made = [path for stage in stages.values() for path in _each_filled(stage, values)]
    for name, stage in stages.items():
        lists = lists_of(stage.each, values)
        if not all(lists.values()):
            continue  # compare.seeds is []: no such job
        ending, item = "-".join(f"{{{key}}}" for key in lists), {key: f"{{{key}}}" for key in lists}
        mine = values | {"item": item if isinstance(stage.each, Mapping) else ending}
        outputs = [filled(path, mine) for path in stage.written]
        yield Rule(
            name, f"{name}@{ending}" if ending else name, key_file(name),
            [path for dep in stage.deps for path in _inside(filled(dep, mine), made)],
            [path for path in outputs if not path.endswith("/")], [path.rstrip("/") for path in outputs if path.endswith("/")],
            {key: "|".join(map(str, found)) for key, found in lists.items()},
            _threads(stage.threads, values, cores), f"logs/{name}-{ending}.log" if ending else f"logs/{name}.log",
        )  # fmt: skip


def lists_of(each: str | Lists | None, values: Any) -> dict[str, list[Any]]:
    """The lists that a stage has a job for each value of, or for each combination of values; {} if it is one job.

    `each` is as in the table, or as `foreach` and `matrix` in dvc.yaml.
    """
    named = {} if each is None else {"item": each} if isinstance(each, str) else each
    return {
        key: found if isinstance(found, list) else value_at(values, found.strip("${}"))
        for key, found in named.items()
    }


def items_of(each: str | Lists | None, values: Any) -> Iterator[tuple[str, Any]]:
    """(what follows the "@" in a job's name, what is `${item}` in its paths) for each job of a stage; ("", None) if it is one job."""
    lists = lists_of(each, values)
    for combination in product(*lists.values()):
        item = (
            dict(zip(lists, combination, strict=True))
            if isinstance(each, Mapping)
            else next(iter(combination), None)
        )
        yield "-".join(map(str, combination)), item


@cache
def dvc_text(graph: Graph) -> str:
    """dvc.yaml of `graph`."""
    import ruamel.yaml

    stages = {
        CODE: {"cmd": f"python -m {ROOT} {CODE}", "deps": [f"graphs/{TABLE.name}", ROOT], "outs": [FOLDER]}
    }
    stages |= {name: _dvc_stage(name, stage) for name, stage in stages_in(graph).items()}
    writer = ruamel.yaml.YAML()
    writer.width = 140
    writer.indent(mapping=2, sequence=4, offset=2)
    text = io.StringIO()
    writer.dump(
        {
            "stages": stages,
            "plots": [{name: _short(plot) for name, plot in one.items()} for one in table().plots],
        },
        text,
    )
    body = re.sub(" +$", "", text.getvalue(), flags=re.MULTILINE)
    return (
        HEADER.format(graph=WORDS[graph], table=TABLE.name, code=CODE, digest=content_hash(body.encode()))
        + body
    )


def is_as_written(text: bytes) -> bool:
    """Whether this is a dvc.yaml as `dvc_text` of this version or another one wrote it, without anybody's edits."""
    head, _, body = text.replace(b"\r\n", b"\n").partition(b"\nstages:\n")
    return all(line.startswith(b"#") for line in head.splitlines()) and head.endswith(
        content_hash(b"stages:\n" + body).encode()
    )


def filled(text: str, values: dict[str, Any]) -> str:
    """`text` with what `values` hold under each `${dotted.key}` in it."""
    return re.sub(r"\$\{([\w.]+)\}", lambda found: str(value_at(values, found[1])), text)


def value_at(params: Any, key: str) -> Any:
    """What params.yaml holds under a dotted key, None where it holds nothing."""
    return value_of(params, tuple(key.split(".")))


def _dvc_stage(name: str, stage: Stage) -> dict[str, Any]:
    items = (
        [f"${{item.{key}}}" for key in stage.each]
        if isinstance(stage.each, Mapping)
        else ["${item}"]
        if stage.each
        else []
    )
    entry = {
        "cmd": f"python -m {ROOT} {name}" + (f"@{'-'.join(items)}" if items else ""),
        "deps": _in_brackets([key_file(name), *stage.deps]),
        "params": _in_brackets([key for one in stage.params for key in _keys(one)]),
        "outs": [
            *({path.rstrip("/"): {"cache": False}} for path in stage.uncached),
            *(path.rstrip("/") for path in stage.outs),
        ],
        "metrics": stage.metrics,
        "plots": [{path: _in_brackets(values)} for path, values in stage.plots.items()],
    }
    entry = {key: value for key, value in entry.items() if value}
    if isinstance(stage.each, Mapping):
        matrix = {
            key: _in_brackets(found) if isinstance(found, list) else f"${{{found}}}"
            for key, found in stage.each.items()
        }
        return {"matrix": matrix, **entry}
    return {"foreach": f"${{{stage.each}}}", "do": entry} if stage.each else entry


def _keys(param: str) -> list[str]:
    """What DVC is told of a stage's `param`: itself, or for "train -seed" all keys of train but seed."""
    section, _, left_out = param.partition(" -")
    found: Any = Params.model_fields[section].annotation if left_out else None
    return [f"{section}.{key}" for key in found.model_fields if key != left_out] if found else [param]


def _short(plot: dict[str, Any]) -> dict[str, Any]:
    return {key: _in_brackets(value) if isinstance(value, dict) else value for key, value in plot.items()}


def _in_brackets(value: Any) -> Any:
    """A list or a dict that is written on one line, if it fits."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    found = CommentedMap(value) if isinstance(value, dict) else CommentedSeq(value)
    found.fa.set_flow_style()
    return found


def _each_filled(stage: Stage, values: dict[str, Any]) -> Iterator[str]:
    for _, item in items_of(stage.each, values):
        yield from (filled(path, values | {"item": item}) for path in stage.written)


def _inside(dep: str, made: list[str]) -> list[str]:
    """`dep`, or if it is a folder that stages only write into, what they write; nothing, if it is that of jobs of which there are none now."""
    collects = dep in {
        path.rstrip("/").rpartition("/")[0] for stage in table().stages.values() for path in stage.written
    }
    found = [path.rstrip("/") for path in made if path.startswith(f"{dep}/") and path != f"{dep}/"]
    return found if collects else [dep]


def _threads(wanted: str | None, values: dict[str, Any], cores: int) -> int:
    return cores if wanted == ALL else int(value_at(values, wanted)) if wanted else 1
