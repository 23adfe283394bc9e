"""Settings of each graph: those of its demo."""

from pipeline.config.params import Params, load_params
from pipeline.config.sections import Graph
from pipeline.core.places import PROJECT
from pipeline.workflow.dvc_yaml import dvc_text

RECIPES: dict[Graph, str] = {"merged": "demo", "adapter": "demo-gguf", "tuned": "demo-scales"}


def settings_of(graph: Graph) -> Params:
    return load_params(PROJECT / f"recipes/{RECIPES[graph]}.yaml")


def graph_text(graph: Graph, *, cache_base: bool = False) -> str:
    """The dvc.yaml of a graph's demo."""
    return dvc_text(settings_of(graph), cache_base=cache_base)
