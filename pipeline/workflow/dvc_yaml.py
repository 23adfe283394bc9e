"""dvc.yaml, written from the table of stages (`pipeline.workflow.stages`): the graph of merged models, or a
shorter one of a base's own GGUF, which is served with an adapter or with trained scales; with the optional
stages that the settings ask for.

Snakemake reads in `params.yaml` which stages it needs (`Snakefile`), and writes dvc.yaml again if an optional
one comes or goes. DVC can't: `quench config use` and `quench config graph` write dvc.yaml, and every stage
refuses one that does not fit the settings.
"""

import io
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.params import Params
from pipeline.config.products import PRODUCTS
from pipeline.config.sections import Graph
from pipeline.core.errors import ConfigError, ToolError
from pipeline.core.publish import write_text
from pipeline.workflow.graph_source import TABLE
from pipeline.workflow.keys.code_keys import CODE, FOLDER, LOCK, SETTINGS, key_file, key_files
from pipeline.workflow.keys.imports import ROOT
from pipeline.workflow.project import is_project
from pipeline.workflow.stages import Plot, Stage, asked_by, optional, stages_of, table
from pipeline.workflow.state.lockfile import graph_stages

HEADER = """\
# The graph of {graph} for DVC, written by `quench config graph`: the stages are {of_code}
# It is made from these and params.yaml, and written again: your own stages belong in a subfolder's dvc.yaml.
"""
OF_CHECKOUT = f"""in graphs/{TABLE.name}, as they are for Snakemake.
# Stage {CODE} writes a key for the code of every stage, so that `dvc repro` alone sees an edit of it; stage
# {SETTINGS} writes the settings in effect."""
OF_PROJECT = """the installed version's, as they are for Snakemake.
# The keys of their code are in .quench/code; `quench doctor upgrade` writes them."""


def dvc_text(params: Params, *, of_project: bool = False, cache_base: bool = False) -> str:
    """Return dvc.yaml for these settings, for a checkout or for a project, which contains no code.

    With `cache_base` DVC keeps the base's weights too (`uncached` in the table).
    """
    return _text(params.graph, asked_by(params), of_project=of_project, cache_base=cache_base)


def _text(graph: Graph, asked: Collection[str], *, of_project: bool, cache_base: bool) -> str:
    """Return dvc.yaml of `graph` with the optional stages that are `asked` for."""
    import ruamel.yaml

    deps = [f"graphs/{TABLE.name}", ROOT]
    code = {CODE: {"cmd": f"python -m {ROOT} {CODE}", "deps": deps, "outs": [FOLDER]}}
    stages: dict[str, Any] = {} if of_project else code
    stages[SETTINGS] = {
        "cmd": f"python -m {ROOT} {SETTINGS}",
        "deps": ["params.yaml", key_file(SETTINGS)],
        "outs": [{LOCK: _in_brackets({"cache": False})}],
    }
    stages |= {name: _dvc_stage(name, stage, cache_base) for name, stage in stages_of(graph, asked).items()}
    writer = ruamel.yaml.YAML()
    writer.width = 200
    writer.indent(mapping=2, sequence=4, offset=2)
    text = io.StringIO()
    writer.dump(
        {
            "stages": stages,
            "plots": [{name: _short(plot) for name, plot in plots.items()} for plots in table().plots],
        },
        text,
    )
    body = re.sub(" +$", "", text.getvalue(), flags=re.MULTILINE)
    of_code = OF_PROJECT if of_project else OF_CHECKOUT
    return HEADER.format(graph=PRODUCTS[graph].plural, of_code=of_code) + body


def _dvc_stage(name: str, stage: Stage, cache_base: bool) -> dict[str, Any]:
    items: list[str] = []
    if isinstance(stage.each, Mapping):
        items = [f"${{item.{key}}}" for key in stage.each]
    elif stage.each:
        items = ["${item}"]
    params = [key for param in stage.params for key in param_keys(param)]
    uncached: list[Any] = [path.rstrip("/") for path in stage.uncached]
    if not cache_base:
        uncached = [{path: {"cache": False}} for path in uncached]
    entry = {
        "cmd": f"python -m {ROOT} {name}" + (f"@{'-'.join(items)}" if items else ""),
        "deps": _in_brackets([*key_files(name, stage.methods), *stage.deps]),
        "params": [{LOCK: _in_brackets(params)}] if stage.params else [],
        "outs": _in_brackets([*uncached, *(path.rstrip("/") for path in stage.outs)]),
        "metrics": _in_brackets(stage.metrics),
        "plots": [{path: _in_brackets(values)} for path, values in stage.plots.items()],
    }
    entry = {key: value for key, value in entry.items() if value}
    if isinstance(stage.each, Mapping):
        matrix = {key: f"${{{over}}}" for key, over in stage.each.items()}
        return {"matrix": _in_brackets(matrix), **entry}
    return {"foreach": f"${{{stage.each}}}", "do": entry} if stage.each else entry


def param_keys(param: str) -> list[str]:
    """Return what DVC gets for a stage's `param`.

    It is the param itself, or for "train -seed -r" all keys of train except these.
    """
    section, *left_out = param.split(" -")
    if not left_out:
        return [param]
    settings: Any = Params.model_fields[section].annotation
    return [f"{section}.{key}" for key in settings.model_fields if key not in left_out]


def _short(plot: Plot) -> dict[str, Any]:
    values = plot.model_dump(exclude_unset=True)
    return {key: _in_brackets(value) if isinstance(value, dict) else value for key, value in values.items()}


def _in_brackets(value: Any) -> Any:
    """Return a list or a dict that is written on one line, if it fits."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    flow = CommentedMap(value) if isinstance(value, dict) else CommentedSeq(value)
    flow.fa.set_flow_style()
    return flow


def need_graph(root: Path, params: Params) -> None:
    """Raise `ConfigError` if `root`/dvc.yaml is of another graph than the settings need, or has other
    optional stages than they ask for.

    A file of no graph is ignored.
    """
    _need_graph(root / "dvc.yaml", _stages(root / "dvc.yaml"), params)


def _need_graph(file: Path, stages: Mapping[str, Any], params: Params) -> None:
    graph = _graph_of(stages)
    if graph is None:
        return
    remedy = "run `quench config graph`, which puts it there"
    if graph != params.graph:
        raise ConfigError(
            "Q-WORKFLOW-004",
            f"{file} is not the graph of {PRODUCTS[params.graph].plural}, which base.quantization and "
            f"train.tuner in params.yaml ask for: {remedy}",
        )
    there = _optional_in(stages, graph)
    asked = asked_by(params)
    lacking = [name for name in asked if name not in there]
    if lacking:
        raise ConfigError(
            "Q-WORKFLOW-004",
            f"{file} has no stage {lacking[0]}, which params.yaml asks for: {remedy}",
        )
    needless = [name for name in there if name not in asked]
    if needless:
        raise ConfigError(
            "Q-WORKFLOW-004",
            f"{file} has stage {needless[0]}, which has nothing to do "
            f"({optional(graph)[needless[0]].otherwise}): run `quench config graph`, which takes it out",
        )


def follow_settings(root: Path, params: Params, *, is_dry_run: bool) -> bool:
    """Write `root`/dvc.yaml again if optional stages come or go with the settings. Return True if it was.

    That is for a file as this version writes it. A dry run changes nothing. Raises `ConfigError` as
    `need_graph` does if the file is another one.
    """
    file = root / "dvc.yaml"
    stages = _stages(file)
    graph = _graph_of(stages)
    if graph == params.graph:
        there = _optional_in(stages, graph)
        if set(there) != set(asked_by(params)):
            cache_base = _keeps_base(stages)
            written = _text(graph, there, of_project=is_project(root), cache_base=cache_base)
            if file.read_bytes() == written.encode():
                return not is_dry_run and put_graph(root, params, cache_base=cache_base)
    _need_graph(file, stages, params)
    return False


def _optional_in(stages: Mapping[str, Any], graph: Graph) -> list[str]:
    """Return the optional stages of a graph among those of a dvc.yaml."""
    return [name for name in optional(graph) if name in stages]


def _stages(file: Path) -> dict[str, Any]:
    """Return the stages in a dvc.yaml; empty if it can't be read.

    DVC reports what is wrong with it.
    """
    try:
        return graph_stages(file)
    except ToolError:
        return {}


def _graph_of(stages: Mapping[str, Any]) -> Graph | None:
    """Return the graph whose distinctive stage is among those of a dvc.yaml, if only one's is.

    The user's own stages may be there too.
    """
    graphs = [graph for graph, product in PRODUCTS.items() if product.made_by in stages]
    return graphs[0] if len(graphs) == 1 else None


def _keeps_base(stages: Mapping[str, Any]) -> bool:
    """Return True if DVC keeps the base's weights by these stages of a dvc.yaml.

    `quench config graph --cache-base` writes it like that.
    """
    base = stages.get("base")
    outs = base.get("outs") if isinstance(base, dict) else None
    weights = [path.rstrip("/") for path in table().stages["base"].uncached]
    return isinstance(outs, list) and all(path in outs for path in weights)


def wanted_text(root: Path, params: Params, *, cache_base: bool | None = None) -> str:
    """Return what this version writes as `root`/dvc.yaml for these settings.

    `cache_base` (DVC keeps the base's weights) stays as it is there, unless it is given.
    """
    if cache_base is None:
        cache_base = _keeps_base(_stages(root / "dvc.yaml"))
    return dvc_text(params, of_project=is_project(root), cache_base=cache_base)


def graph_for(root: Path, params: Params) -> dict[str, Any]:
    """Return the stages of `root`/dvc.yaml, as a run that begins now would have them.

    A run writes the file again first if optional stages come or go. This writes nothing. Raises
    `ConfigError` as `need_graph` does, and `ToolError` if the file can't be read.
    """
    file = root / "dvc.yaml"
    stages = graph_stages(file)
    graph = _graph_of(stages)
    follows = graph == params.graph and {*_optional_in(stages, graph)} != {*asked_by(params)}
    if follows or not file.exists():
        return dict(yaml.safe_load(wanted_text(root, params))["stages"])
    _need_graph(file, stages, params)
    return stages


def put_graph(root: Path, params: Params, *, cache_base: bool | None = None) -> bool:
    """Make `root`/dvc.yaml the graph of these settings, whatever it is now. Return True if that changed it.

    `cache_base` (DVC keeps the base's weights) stays as it is there, unless it is given.
    """
    target = root / "dvc.yaml"
    expected = wanted_text(root, params, cache_base=cache_base)
    if target.is_file() and target.read_bytes() == expected.encode():
        return False
    write_text(target, expected)
    # DVC needs every folder that a stage names, and projects that are older than stage augment lack this one.
    (root / "data/augmented").mkdir(parents=True, exist_ok=True)
    return True
