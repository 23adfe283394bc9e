"""The strategies from a base and data to a model that is served at a level, by key, in the order in which
tables show them.
"""

from pathlib import Path
from typing import Literal, NamedTuple

MERGED_16, MERGED_NF4, LORA_NF4, LORA_LEVEL = "merged_16", "merged_nf4", "lora_nf4", "lora_level"


class Strategy(NamedTuple):
    """One strategy; `{level}` in its texts is the level's name.

    `merge_base` is what the adapter is merged into; without one it stays an adapter, on a GGUF of the base.
    `on_level`: trained on that GGUF.
    """

    title: str
    remedy: str  # what takes a user there
    merge_base: Literal["16-bit", "nf4"] | None = None
    on_level: bool = False


STRATEGIES = {
    MERGED_16: Strategy(
        "train on NF4, merge into 16 bit, make {level}", "set merge.base to 16-bit", merge_base="16-bit"
    ),
    MERGED_NF4: Strategy(
        "train on NF4, merge into NF4, make {level}", "set merge.base to nf4", merge_base="nf4"
    ),
    LORA_NF4: Strategy(
        "train on NF4, put the adapter on the base's {level}",
        "add base-{level} to quantize.levels and run `quench serve base-{level} --lora`",
    ),
    LORA_LEVEL: Strategy(
        "train on {level} itself, put the adapter on it",
        "set base.quantization to gguf and base.level to {level} (recipe demo-gguf shows how)",
        on_level=True,
    ),
}
FOLDER = Path("models/.compare")  # scratch of the jobs of `compare`: neither Snakemake nor DVC looks at it
CHANCE = 0.05  # a difference whose p is not below it may be chance, as for `pipeline.gate.drops`


def title(strategy: str, level: str) -> str:
    """What a strategy is called: "train on Q4_K_M itself, put the adapter on it"."""
    return STRATEGIES[strategy].title.format(level=level)
