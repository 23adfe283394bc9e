"""The commands behind the page's figures, each with what it measures and an id to link to."""

import re
from collections.abc import Iterable, Mapping

from pipeline.config.sections import BASE_WITH_ADAPTER, TUNED, served_of

WORDS = {
    "base": "the base model: source, revision, hashes, license",
    "curate": "what became of every row of data/raw",
    "preprocess": "tokens, trained tokens, packing",
    "train": "the adapter, its curves and the run record",
    "merge": "the merge, how far it moved the weights",
    "lora": "the adapter as a GGUF",
    "tuned": "the base's GGUF with the trained scales",
    "compare": "the sum of the comparison of strategies (its jobs: `snakemake -n`)",
    "parity": "the parity checks, and how much each level rounds a weight",
    "report": "this page: the recommendation, the gate, the paired tests (from the answers), the data files",
}


def command_list(models: Iterable[str]) -> Mapping[str, str]:
    """Each command (without `python -m pipeline`) and what it measures, in the order of the pipeline; one
    `evaluate` per model.
    """
    models = list(models)
    served = served_of(models)
    words = WORDS | (
        {"parity": "the parity checks between the trained model and what is served"} if served else {}
    )
    own = {None: ("merge", "compare"), BASE_WITH_ADAPTER: ("lora",), TUNED: ("tuned",)}
    words |= {"train": words["train"].replace("the adapter", "the scales")} if served == TUNED else {}
    left_out = [stage for model, stages in own.items() if model != served for stage in stages]
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
