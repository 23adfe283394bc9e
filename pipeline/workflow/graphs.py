"""Which stages there are: the graph of merged models, or the shorter ones of a base's own GGUF, which is
served with an adapter or with trained scales.

Snakemake asks `params.yaml` for the one it needs (`Snakefile`). DVC can't: `quench config use` and `quench
config graph` write `dvc.yaml` from the table of stages (`pipeline.workflow.stages`), and every stage refuses
it if it is another graph.
"""

from pathlib import Path
from typing import Any

from pipeline.config.sections import Graph
from pipeline.core.errors import ConfigError
from pipeline.core.publish import publishing
from pipeline.core.yaml_readers import UNREADABLE, read_fast
from pipeline.workflow.dvc_yaml import dvc_text
from pipeline.workflow.project import is_project
from pipeline.workflow.stages import WORDS, table

# a stage that only this graph has
OWN: dict[Graph, str] = {"merged": "merge", "adapter": "lora", "tuned": "tuned"}


def need_graph(root: Path, graph: Graph) -> None:
    """Raise `ConfigError` where `root`/dvc.yaml is another graph than `graph`.

    One of other stages, or none, is nobody's concern here.
    """
    file = root / "dvc.yaml"
    found = _graph_of(file)
    if found not in (None, graph):
        raise ConfigError(
            "Q-WORKFLOW-004",
            f"{file} is not the graph of {WORDS[graph]}, which base.quantization and train.tuner in "
            "params.yaml ask for: run `quench config graph`, which puts it there",
        )


def _stages(file: Path) -> dict[str, Any]:
    """The stages in a dvc.yaml; none where it can't be read: DVC says what is wrong with it."""
    try:
        stages = (read_fast(file) or {}).get("stages") if file.is_file() else None
    except (*UNREADABLE, AttributeError, TypeError):
        return {}
    return stages if isinstance(stages, dict) else {}


def _graph_of(file: Path) -> Graph | None:
    """The graph that has a stage of a dvc.yaml alone, if only one has; the user's own stages may stand beside
    them.
    """
    stages = _stages(file)
    found = [graph for graph, stage in OWN.items() if stage in stages]
    return found[0] if len(found) == 1 else None


def _keeps_base(file: Path) -> bool:
    """Whether a dvc.yaml has DVC keep the base's weights, as `quench config graph --cache-base` writes it."""
    base = _stages(file).get("base")
    outs = base.get("outs") if isinstance(base, dict) else None
    weights = [path.rstrip("/") for path in table().stages["base"].uncached]
    return isinstance(outs, list) and all(path in outs for path in weights)


def wanted_text(root: Path, graph: Graph, *, cache_base: bool | None = None) -> str:
    """What this version writes as `root`/dvc.yaml for `graph`. Whether DVC keeps the base's weights
    (`cache_base`) stays as it is there, unless that is given.
    """
    if cache_base is None:
        cache_base = _keeps_base(root / "dvc.yaml")
    return dvc_text(graph, of_project=is_project(root), cache_base=cache_base)


def put_graph(root: Path, graph: Graph, *, cache_base: bool | None = None) -> bool:
    """Make `root`/dvc.yaml the graph `graph`, whatever it is now; whether that changed it. Whether DVC keeps
    the base's weights (`cache_base`) stays as it is, unless that is given.
    """
    target = root / "dvc.yaml"
    wanted = wanted_text(root, graph, cache_base=cache_base).encode()
    if target.is_file() and target.read_bytes() == wanted:
        return False
    with publishing(target) as aside:
        aside.write_bytes(wanted)
    return True
