"""The commands behind the page's figures, each with what it measures and an id to link to."""

import re
from collections.abc import Iterable, Mapping

from pipeline.config.sections import BASE_WITH_ADAPTER

WORDS = {
    "base": "the base model: source, revision, hashes, license",
    "curate": "what became of every row of data/raw",
    "preprocess": "tokens, trained tokens, packing",
    "train": "the adapter, its curves and the run record",
    "merge": "the merge, how far it moved the weights",
    "lora": "the adapter as a GGUF",
    "compare": "the sum of the comparison of strategies (its jobs: `snakemake -n`)",
    "parity": "the parity checks, and how much each level rounds a weight",
    "report": "this page: the recommendation, the gate, the paired tests (from the answers), the data files",
}


def command_list(models: Iterable[str]) -> Mapping[str, str]:
    """Each command (without `python -m pipeline`) and what it measures, in the order of the pipeline; one
    `evaluate` per model.
    """
    models = list(models)
    unmerged = BASE_WITH_ADAPTER in models
    words = WORDS | (
        {"parity": "the parity checks between the trained model and what is served"} if unmerged else {}
    )
    left_out = ("merge", "compare") if unmerged else ("lora",)
    return (
        {name: stated for name, stated in words.items() if name not in (*left_out, "report")}
        | {
            f"evaluate@{model}": f"{model}: file, divergence, speed, memory, answers, general ability"
            for model in models
        }
        | {"report": words["report"]}
    )


def anchor(command: str) -> str:
    """The id of a command on the page."""
    return "command-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", command)
