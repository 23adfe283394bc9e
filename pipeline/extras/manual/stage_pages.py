"""Make a page for each stage from the graph, the settings, the catalog of errors and the records."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipeline.config.params import Params
from pipeline.config.params_text import as_yaml, value_at
from pipeline.config.sections.values import Key, group_of, keys_of
from pipeline.core.catalog import catalog
from pipeline.core.places import PACKAGE
from pipeline.extras.manual.reference import cell, plain, setting_anchor
from pipeline.extras.manual.schema import figures
from pipeline.gate import records
from pipeline.gate.evaluations import Evaluation
from pipeline.workflow.keys.code_keys import stage_module
from pipeline.workflow.stages import DERIVED, Stage, table

FOLDER = "stages"
GRAPHS = ("merged", "adapter", "tuned")
ID = re.compile(r"\bQ-[A-Z0-9]+-\d+\b")
# what the report relies on in the stages' figures
RECORDS: Mapping[str, type[BaseModel]] = {
    "models/base.json": records.Base,
    "reports/data.json": records.Data,
    "reports/labels.json": records.Labels,
    "reports/train.json": records.Train,
    "reports/merge.json": records.Merge,
    "reports/parity.json": records.Parity,
    "reports/eval/${item}.json": Evaluation,
    "reports/strategies.json": records.Strategies,
}


def stage_pages() -> dict[str, str]:
    """Return the page of each stage by its place in the manual, in the order of the graph."""
    return {f"{FOLDER}/{name}.md": _page(name, stage) for name, stage in table().stages.items()}


def _page(name: str, stage: Stage) -> str:
    module = _module(name)
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    sections = {
        "": [f"# Stage {name}", text, *_when(stage)],
        "## Files": _files(stage),
        "## Settings": _settings(stage),
        "## Checks": _checks(name, module),
        "## Figures": _figures(stage),
    }
    parts = [part for head, body in sections.items() if body for part in (head, *body) if part]
    return "\n\n".join(parts) + "\n"


def _module(stage: str) -> Path:
    return PACKAGE.joinpath(*stage_module(stage).split(".")[1:]).with_suffix(".py")


def _when(stage: Stage) -> Iterator[str]:
    """Yield sentences on when a project has the stage, and on its jobs."""
    if stage.only:
        yield f"It is there only in the graph `{stage.only}` ([the three](../workflow.md#the-stages))."
    if stage.when:
        yield f"It is left out if {stage.when.otherwise}."
    if isinstance(stage.each, str):
        yield f"It is a job for each value of {_setting(stage.each)}: `${{item}}` in the names below."
    elif stage.each:
        keys = ", ".join(map(_setting, stage.each.values()))
        yield f"It is a job for each combination of {keys}; `${{item.NAME}}` below is one of its values."


def _files(stage: Stage) -> list[str]:
    rows = [("reads", path, "") for path in stage.deps]
    rows += [("reads", path, graph) for graph in GRAPHS for path in getattr(stage, graph).deps]
    rows += [("writes", path, "") for path in stage.written]
    lines = [
        f"| {verb} | `{path}` | {graph} | {_writers(path) if verb == 'reads' else ''} |"
        for verb, path, graph in dict.fromkeys(rows)
    ]
    return ["\n".join(["| | file | only in graph | written by |", "| --- | --- | --- | --- |", *lines])]


def _writers(path: str) -> str:
    """Return links to the stages that write a file, or into a folder."""
    stages = [
        name
        for name, stage in table().stages.items()
        if any(out.rstrip("/") == path or out.startswith(f"{path}/") for out in stage.written)
    ]
    return ", ".join(f"[{name}]({name}.md)" for name in stages) or "you"


def _settings(stage: Stage) -> list[str]:
    """Return the table of the keys that make the stage run again."""
    params = [*stage.params, *(param for graph in GRAPHS for param in getattr(stage, graph).params)]
    defaults = Params().model_dump(mode="json")
    fields = dict(keys_of(Params))
    lines = [
        f"| {_setting('.'.join(key))} | `{cell(as_yaml(value_at(defaults, key)))}` "
        f"| {cell(plain(fields[key].description or ''))} |"
        for key in fields
        if not group_of(fields[key]) and any(_covers(param, key) for param in params)
    ]
    if not lines:
        return []
    head = "If one of these changes, the stage runs again."
    return [head, "\n".join(["| key | default | what it does |", "| --- | --- | --- |", *lines])]


def _covers(param: str, key: Key) -> bool:
    """Return True if a stage's `param` ("train -seed": all of train but the seed) has this key."""
    name, *left_out = param.split(" -")
    above = tuple(name.split("."))
    if above[0] == DERIVED or key[: len(above)] != above:
        return False
    return not left_out or key[len(above)] not in [word.strip() for word in left_out]


def _setting(name: str) -> str:
    return f"[`{name}`](../settings.md#{setting_anchor(name)})"


def _checks(stage: str, module: Path) -> list[str]:
    """Return the table of the errors that the stage's own code raises."""
    files = [module] if "_" in stage else sorted(module.parent.rglob("*.py"))
    raised = {id for file in files for id in ID.findall(file.read_text(encoding="utf-8"))}
    problems = [problem for id, problem in catalog().items() if id in raised]
    lines = [
        f"| [{problem.id}](../troubleshooting.md#{problem.id.lower()}) | {cell(problem.when)} "
        f"| {cell(problem.remedy)} |"
        for problem in problems
    ]
    if not lines:
        return []
    head = "What the stage refuses or finds, and what to do then."
    return [head, "\n".join(["| id | when | what to do |", "| --- | --- | --- |", *lines])]


def _figures(stage: Stage) -> list[str]:
    parts = [f"`{path}`:\n\n{_keys_of(RECORDS[path])}" for path in stage.written if path in RECORDS]
    plots = [f"`{path}`: a table to plot, {_axes(axes)}." for path, axes in stage.plots.items()]
    metrics = [f"`{path}`: what `dvc metrics show` prints and compares." for path in stage.metrics]
    return [*metrics, *plots, *parts]


def _axes(axes: Mapping[str, str]) -> str:
    return " against ".join(f"`{axes[axis]}`" for axis in ("y", "x") if axis in axes)


def _keys_of(record: type[BaseModel]) -> str:
    schema: dict[str, Any] = record.model_json_schema()
    rows: Sequence[tuple[str, str]] = list(figures(schema, schema.get("$defs", {})))
    lines = [f"| `{key}` | {cell(kind) or 'as the stage writes it'} |" for key, kind in rows]
    return "\n".join(["| key | value |", "| --- | --- |", *lines])
