"""Which stages there are: the graph of merged models, or the shorter one of a base that is served as it is.

Snakemake asks `params.yaml` for the one it needs (`Snakefile`). DVC can't: `dvc.yaml` is a copy of one of the files in `graphs/`, put there by
`quench use` and `quench graph`, and refused by every stage where it is the other one.
"""

import shutil
from pathlib import Path

import yaml

from pipeline.config.sections import Graph
from pipeline.core.errors import ConfigError
from pipeline.core.publish import publishing
from pipeline.llamacpp.tools import PROJECT

GRAPHS = PROJECT / "graphs"
SUFFIX = ".dvc.yaml"
OWN: dict[Graph, str] = {"merged": "merge", "adapter": "lora"}  # a stage that only this graph has
WORDS: dict[Graph, str] = {"merged": "merged models", "adapter": "adapters on a GGUF"}


def need_graph(root: Path, graph: Graph) -> None:
    """Raise `ConfigError` where `root`/dvc.yaml is the other graph than `graph`; one of other stages, or none, is nobody's concern here."""
    if _is_graph(root / "dvc.yaml", "merged" if graph == "adapter" else "adapter"):
        raise ConfigError(
            f"{root / 'dvc.yaml'} is not the graph of {WORDS[graph]}, which base.quantization in params.yaml asks for: run `quench graph`, "
            "which puts it there"
        )


def _is_graph(file: Path, graph: Graph) -> bool:
    """Whether `file` has the stage that only `graph` has, and not the other's; somebody's own stages may stand beside it."""
    other: Graph = "merged" if graph == "adapter" else "adapter"
    try:
        stages = (yaml.safe_load(file.read_bytes()) or {}).get("stages", {}) if file.is_file() else {}
        return OWN[graph] in stages and OWN[other] not in stages
    except (yaml.YAMLError, AttributeError, TypeError, ValueError, RecursionError):
        return False  # DVC says what is wrong with it


def put_graph(root: Path, graph: Graph, *, force: bool = False, anew: bool = False) -> bool:
    """Make `root`/dvc.yaml the graph `graph`; whether that changed it. An edited file that is this graph already stays, unless it is wanted `anew`.

    Raises `ConfigError` where it is someone's edits of anything else, unless `force` is set. What is replaced is kept as dvc.yaml.edited, or under
    the next free name.
    """
    target, wanted = root / "dvc.yaml", (GRAPHS / f"{graph}{SUFFIX}").read_bytes()
    there = target.read_bytes() if target.is_file() else None
    if there == wanted:
        return False
    known = [path.read_bytes() for path in GRAPHS.glob(f"*{SUFFIX}")]
    edited = there is not None and there not in known
    if edited and not anew and _is_graph(target, graph):
        return False
    if edited and not (force or anew):
        raise ConfigError(f"{target} has edits that are in neither graph of {GRAPHS.name}/: keep a copy, then add --force to replace it")
    if edited:
        names = (f"{target.name}.edited{number}" for number in ("", *range(2, 1000)))
        kept = next(path for name in names if not (path := target.with_name(name)).exists())
        shutil.copy2(target, kept)
        print(f"{target.name} had edits: they are in {kept.name} now")
    with publishing(target) as aside:
        aside.write_bytes(wanted)
    return True
