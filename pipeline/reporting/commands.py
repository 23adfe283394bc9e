"""The commands behind the page's figures, each with what it measures and an id to link to."""

import re
from collections.abc import Iterable, Mapping

WORDS = {
    "base": "the base model: source, revision, hashes, licence",
    "curate": "what became of every row of data/raw",
    "preprocess": "tokens, trained tokens, packing",
    "train": "the adapter, its curves and the run record",
    "merge": "the merge, how far it moved the weights",
    "parity": "the seams, and how much each level rounds a weight",
    "report": "this page: the recommendation, the gate, the paired tests (from the answers), the data files",
}


def command_list(models: Iterable[str]) -> Mapping[str, str]:
    """Each command (without `python -m pipeline`) and what it measures, in the order of the pipeline; one `evaluate` per model."""
    evaluations = {f"evaluate@{model}": f"{model}: file, likeness, speed, memory, answers, general ability" for model in models}
    names = list(WORDS)
    return {name: WORDS[name] for name in names[:-1]} | evaluations | {"report": WORDS["report"]}


def anchor(command: str) -> str:
    """The id of a command on the page."""
    return "command-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", command)
