"""The strategies from a base and data to a model that is served at a level, by key, in the order in which
tables show them.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

MERGED_16, MERGED_NF4, LORA_NF4, LORA_LEVEL = "merged_16", "merged_nf4", "lora_nf4", "lora_level"
SCALES_LEVEL, DISTILLED_SCALES, MERGED_DISTILLED = "scales_level", "distilled_scales", "merged_distilled"
# what a strategy's own training is, a list in compare.strategies each: an adapter on NF4, an adapter on the
# level, the level's scales, or these after or by a distillation
Training = Literal["nf4", "level", "scales", "distilled"]


class Strategy(NamedTuple):
    """One strategy; `{level}` in its texts is the level's name.

    `merge_base` is what an adapter trained on NF4 is merged into; without one such an adapter stays one, on a
    GGUF of the base. Trained scales are in the one GGUF that ships.
    """

    title: str
    remedy: str  # what takes a user there
    training: Training
    merge_base: Literal["16-bit", "nf4"] | None = None

    @property
    def trains_scales(self) -> bool:
        """Whether what ships is one GGUF with trained scales."""
        return self.training in ("scales", "distilled")


STRATEGIES = {
    MERGED_16: Strategy(
        "train on NF4, merge into 16 bit, make {level}", "set merge.base to 16-bit", "nf4", "16-bit"
    ),
    MERGED_NF4: Strategy("train on NF4, merge into NF4, make {level}", "set merge.base to nf4", "nf4", "nf4"),
    LORA_NF4: Strategy(
        "train on NF4, put the adapter on the base's {level}",
        "add base-{level} to quantize.levels and run `quench serve base-{level} --lora`",
        "nf4",
    ),
    LORA_LEVEL: Strategy(
        "train on {level} itself, put the adapter on it",
        "set base.quantization to gguf and base.level to {level} (recipe demo-gguf shows how)",
        "level",
    ),
    SCALES_LEVEL: Strategy(
        "tune the scales of {level} itself",
        "set base.quantization to gguf, base.level to {level} and train.tuner to scales (recipe demo-scales "
        "shows how), train.learning_rate to 5.0e-3 and train.weight_decay to 0",
        "scales",
    ),
    DISTILLED_SCALES: Strategy(
        "distill {level}, then tune its scales",
        "distill the base's {level} with train.method distill and train.tuner scales, then make that file "
        "base.model and train its scales; learning rates are 2.0e-3 and then 5.0e-3, train.weight_decay is 0",
        "distilled",
    ),
    MERGED_DISTILLED: Strategy(
        "train on NF4, merge into 16 bit, make {level}, distill it from the merged model",
        "set merge.base to 16-bit, and add {level} to quantize.levels and to quantize.distill",
        "distilled",
        "16-bit",
    ),
}
FOLDER = Path("models/.compare")  # scratch of the jobs of `compare`: neither Snakemake nor DVC looks at it
CHANCE = 0.05  # a difference whose p is not below it may be chance


def distills(strategies: Iterable[str]) -> bool:
    """Whether one of the strategies has a level learn the answers of 16 bits."""
    return any(STRATEGIES[name].training == "distilled" for name in strategies)


def title(strategy: str, level: str) -> str:
    """What a strategy is called: "train on Q4_K_M itself, put the adapter on it"."""
    return STRATEGIES[strategy].title.format(level=level)


def training_of(strategy: str, level: str, seed: int) -> str:
    """What a strategy's own training is called: "nf4-42" or "lora_level-Q4_K_M-42"."""
    training = STRATEGIES[strategy].training
    return f"nf4-{seed}" if training == "nf4" else f"{strategy}-{level}-{seed}"
