"""dvc.yaml, written from the table of stages."""

import io
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from pipeline.config.params import Params
from pipeline.config.sections import Graph
from pipeline.workflow.code_keys import CODE, FOLDER, LOCK, SETTINGS, key_file, key_files
from pipeline.workflow.stages import TABLE, WORDS, Plot, Stage, stages_in, table
from pipeline.workflow.syntax import ROOT

HEADER = """\
# The graph of {graph} for DVC, written by `quench config graph`: the stages are {of_code}
# It is made from these and params.yaml, and written again: your own stages belong in a subfolder's dvc.yaml.
"""
OF_CHECKOUT = f"""in graphs/{TABLE.name}, as they are for Snakemake.
# Stage {CODE} writes a key for the code of every stage, so that `dvc repro` alone sees an edit of it; stage
# {SETTINGS} writes the settings in effect."""
OF_PROJECT = """the installed version's, as they are for Snakemake.
# The keys of their code are in .quench/code; `quench doctor upgrade` writes them."""


@cache
def dvc_text(graph: Graph, *, of_project: bool = False, cache_base: bool = False) -> str:
    """dvc.yaml of `graph`, for a checkout or for a project, which holds no code; `cache_base`: DVC keeps the
    base's weights too (`uncached` in the table).
    """
    import ruamel.yaml

    deps = [f"graphs/{TABLE.name}", ROOT]
    code = {CODE: {"cmd": f"python -m {ROOT} {CODE}", "deps": deps, "outs": [FOLDER]}}
    stages: dict[str, Any] = {} if of_project else code
    stages[SETTINGS] = {
        "cmd": f"python -m {ROOT} {SETTINGS}",
        "deps": ["params.yaml", key_file(SETTINGS)],
        "outs": [{LOCK: _in_brackets({"cache": False})}],
    }
    stages |= {name: _dvc_stage(name, stage, cache_base) for name, stage in stages_in(graph).items()}
    writer = ruamel.yaml.YAML()
    writer.width = 200
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
    return HEADER.format(graph=WORDS[graph], of_code=OF_PROJECT if of_project else OF_CHECKOUT) + body


def _dvc_stage(name: str, stage: Stage, cache_base: bool) -> dict[str, Any]:
    items = (
        [f"${{item.{key}}}" for key in stage.each]
        if isinstance(stage.each, Mapping)
        else ["${item}"]
        if stage.each
        else []
    )
    entry = {
        "cmd": f"python -m {ROOT} {name}" + (f"@{'-'.join(items)}" if items else ""),
        "deps": _in_brackets([*key_files(name, stage.methods), *stage.deps]),
        "params": [{LOCK: _in_brackets([key for one in stage.params for key in _keys(one)])}]
        if stage.params
        else [],
        "outs": _in_brackets(
            [
                *(
                    path.rstrip("/") if cache_base else {path.rstrip("/"): {"cache": False}}
                    for path in stage.uncached
                ),
                *(path.rstrip("/") for path in stage.outs),
            ]
        ),
        "metrics": _in_brackets(stage.metrics),
        "plots": [{path: _in_brackets(values)} for path, values in stage.plots.items()],
    }
    entry = {key: value for key, value in entry.items() if value}
    if isinstance(stage.each, Mapping):
        matrix = {
            key: _in_brackets(found) if isinstance(found, list) else f"${{{found}}}"
            for key, found in stage.each.items()
        }
        return {"matrix": _in_brackets(matrix), **entry}
    return {"foreach": f"${{{stage.each}}}", "do": entry} if stage.each else entry


def _keys(param: str) -> list[str]:
    """What DVC is told of a stage's `param`: itself, or for "train -seed -r" all keys of train but these."""
    section, *left_out = param.split(" -")
    found: Any = Params.model_fields[section].annotation if left_out else None
    return [f"{section}.{key}" for key in found.model_fields if key not in left_out] if found else [param]


def _short(plot: Plot) -> dict[str, Any]:
    values = plot.model_dump(exclude_unset=True)
    return {key: _in_brackets(value) if isinstance(value, dict) else value for key, value in values.items()}


def _in_brackets(value: Any) -> Any:
    """A list or a dict that is written on one line, if it fits."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    found = CommentedMap(value) if isinstance(value, dict) else CommentedSeq(value)
    found.fa.set_flow_style()
    return found
