"""Which stages there are: the graph of merged models, or the shorter ones of a base's own GGUF, which is
served with an adapter or with trained scales.

Snakemake asks `params.yaml` for the one it needs (`Snakefile`). DVC can't: `quench use` and `quench graph`
write `dvc.yaml` from the table of stages (`pipeline.workflow.stages`), and every stage refuses it if it is
another graph.
"""

import shutil
from pathlib import Path
from typing import Any

from pipeline.config.sections import Graph
from pipeline.core.errors import ConfigError
from pipeline.core.publish import publishing
from pipeline.core.yaml_readers import UNREADABLE, read_fast
from pipeline.workflow.code_keys import key_file
from pipeline.workflow.dvc_yaml import dvc_text, is_as_written
from pipeline.workflow.project import is_project
from pipeline.workflow.stages import WORDS, table
from pipeline.workflow.syntax import ROOT

# a stage that only this graph has
OWN: dict[Graph, str] = {"merged": "merge", "adapter": "lora", "tuned": "tuned"}


def need_graph(root: Path, graph: Graph) -> None:
    """Raise `ConfigError` where `root`/dvc.yaml is another graph than `graph`, or of an older version.

    One of other stages, or none, is nobody's concern here.
    """
    file = root / "dvc.yaml"
    stages = _stages(file)
    found = _graph_of(stages)
    if found not in (None, graph):
        raise ConfigError(
            "Q-WORKFLOW-004",
            f"{file} is not the graph of {WORDS[graph]}, which base.quantization and train.tuner in "
            "params.yaml ask for: run `quench graph`, which puts it there",
        )
    if found and _names_code(stages):
        raise ConfigError(
            "Q-WORKFLOW-005",
            f"{file} is of an older version and names files of its code: run `quench graph`, which replaces "
            "it and keeps a copy",
        )


def _stages(file: Path) -> dict[str, Any]:
    """The stages in a dvc.yaml; none where it can't be read: DVC says what is wrong with it."""
    try:
        stages = (read_fast(file) or {}).get("stages") if file.is_file() else None
    except (*UNREADABLE, AttributeError, TypeError):
        return {}
    return stages if isinstance(stages, dict) else {}


def _graph_of(stages: dict[str, Any]) -> Graph | None:
    """The graph that has a stage of `stages` alone, if only one has; somebody's own stages may stand beside
    them.
    """
    found = [graph for graph, stage in OWN.items() if stage in stages]
    return found[0] if len(found) == 1 else None


def _names_code(stages: dict[str, Any]) -> bool:
    """Whether one of our stages depends on files of code instead of a key, as all did before there were
    keys.
    """
    return any(name in table().stages and _depends_on_code(name, stage) for name, stage in stages.items())


def _depends_on_code(name: str, stage: Any) -> bool:
    inner = stage.get("do", stage) if isinstance(stage, dict) else None
    deps = [
        dep for dep in (inner.get("deps") if isinstance(inner, dict) else None) or [] if isinstance(dep, str)
    ]
    return key_file(name) not in deps and any(dep.startswith(f"{ROOT}/") for dep in deps)


def _keeps_base(stages: dict[str, Any]) -> bool:
    """Whether a dvc.yaml has DVC keep the base's weights, as `quench graph --cache-base` writes it."""
    base = stages.get("base")
    outs = base.get("outs") if isinstance(base, dict) else None
    weights = [path.rstrip("/") for path in table().stages["base"].uncached]
    return isinstance(outs, list) and all(path in outs for path in weights)


def wanted_text(root: Path, graph: Graph, *, cache_base: bool | None = None) -> str:
    """What this version writes as `root`/dvc.yaml for `graph`. Whether DVC keeps the base's weights
    (`cache_base`) stays as it is there, unless that is given.
    """
    if cache_base is None:
        cache_base = _keeps_base(_stages(root / "dvc.yaml"))
    return dvc_text(graph, of_project=is_project(root), cache_base=cache_base)


def put_graph(
    root: Path, graph: Graph, *, force: bool = False, again: bool = False, cache_base: bool | None = None
) -> bool:
    """Make `root`/dvc.yaml the graph `graph`; whether that changed it. An edited file that is this graph
    already stays, unless it is wanted `again`. Whether DVC keeps the base's weights (`cache_base`) stays as
    it is, unless that is given.

    Raises `ConfigError` where it is someone's edits of anything else, unless `force` is set. What is replaced
    is kept as dvc.yaml.edited, or under the next free name.
    """
    target = root / "dvc.yaml"
    stages = _stages(target)
    wanted = wanted_text(root, graph, cache_base=cache_base).encode()
    there = target.read_bytes() if target.is_file() else None
    if there == wanted:
        return False
    edited = there is not None and not is_as_written(there)
    is_this_one = _graph_of(stages) == graph
    older = edited and is_this_one and _names_code(stages)
    if edited and not older and not again and is_this_one and cache_base in (None, _keeps_base(stages)):
        return False
    if edited and not (force or again or older):
        raise ConfigError(
            "Q-WORKFLOW-006",
            f"{target} has edits that are in no graph: keep a copy, then add --force to replace it",
        )
    if edited:
        names = (f"{target.name}.edited{number}" for number in ("", *range(2, 1000)))
        kept = next(path for name in names if not (path := target.with_name(name)).exists())
        shutil.copy2(target, kept)
        print(f"{target.name} had edits: they are in {kept.name} now")
    with publishing(target) as aside:
        aside.write_bytes(wanted)
    return True
