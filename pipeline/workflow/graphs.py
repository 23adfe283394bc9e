"""Which stages there are: the graph of merged models, or the shorter one of a base that is served as it is.

Snakemake asks `params.yaml` for the one it needs (`Snakefile`). DVC can't: `dvc.yaml` is a copy of one of the files in `graphs/`, put there by
`quench use` and `quench graph`, and refused by every stage where it is the other one.
"""

from pathlib import Path

import yaml

from pipeline.errors import ConfigError
from pipeline.llamacpp.tools import PROJECT
from pipeline.publish import publishing
from pipeline.sections import Graph

GRAPHS = PROJECT / "graphs"
SUFFIX = ".dvc.yaml"
OWN: dict[Graph, str] = {"merged": "merge", "adapter": "lora"}  # a stage that only this graph has
WORDS: dict[Graph, str] = {"merged": "merged models", "adapter": "adapters on a GGUF"}


def need_graph(root: Path, graph: Graph) -> None:
    """Raise `ConfigError` where `root`/dvc.yaml is the other graph than `graph`; one of other stages, or none, is nobody's concern here."""
    file = root / "dvc.yaml"
    try:
        stages = (yaml.safe_load(file.read_bytes()) or {}).get("stages", {}) if file.is_file() else {}
    except (yaml.YAMLError, AttributeError):
        return  # DVC says what is wrong with it
    other: Graph = "merged" if graph == "adapter" else "adapter"
    if OWN[other] in stages and OWN[graph] not in stages:
        raise ConfigError(
            f"{file} is not the graph of {WORDS[graph]}, which base.quantization in params.yaml asks for: run `quench graph`, which puts it there"
        )


def put_graph(root: Path, graph: Graph, *, force: bool = False) -> bool:
    """Make `root`/dvc.yaml the graph `graph`; whether that changed it.

    Raises `ConfigError` where the file is neither of the two graphs, someone's edits, unless `force` is set.
    """
    target, wanted = root / "dvc.yaml", (GRAPHS / f"{graph}{SUFFIX}").read_bytes()
    there = target.read_bytes() if target.is_file() else None
    if there == wanted:
        return False
    known = [path.read_bytes() for path in GRAPHS.glob(f"*{SUFFIX}")]
    if there is not None and there not in known and not force:
        raise ConfigError(f"{target} has edits that are in neither graph of {GRAPHS.name}/: keep a copy, then add --force to replace it")
    with publishing(target) as aside:
        aside.write_bytes(wanted)
    return True
