"""The strategies, by key in table order, that lead from a base and data to a model served at a level."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from pipeline.core.places import scratch

StrategyName = Literal[
    "merged_16",
    "merged_nf4",
    "lora_nf4",
    "lora_level",
    "scales_level",
    "distilled_scales",
    "merged_distilled",
]
MERGED_16 = "merged_16"


class Strategy(NamedTuple):
    """One strategy; `{level}` in its texts is the level's name.

    With `on_nf4`, the product is made from an adapter trained on NF4, which all such strategies share, and
    nothing else is trained. `merge_base` is what such an adapter is merged into, if it is. With `beside`, the
    adapter is applied to the level. `taught_by` is the 16-bit model whose answers the level's scales learn,
    if any.
    """

    title: str
    remedy: str  # settings with which a user gets it
    on_nf4: bool = False
    merge_base: Literal["16-bit", "nf4"] = "16-bit"
    beside: bool = False
    taught_by: Literal["", "base", "merged"] = ""


STRATEGIES: Mapping[str, Strategy] = {
    MERGED_16: Strategy(
        "train on NF4, merge into 16 bit, make {level}", "set merge.base to 16-bit", on_nf4=True
    ),
    "merged_nf4": Strategy(
        "train on NF4, merge into NF4, make {level}",
        "set merge.base to nf4",
        on_nf4=True,
        merge_base="nf4",
    ),
    "lora_nf4": Strategy(
        "train on NF4, put the adapter on the base's {level}",
        "add base-{level} to quantize.levels and run `quench serve base-{level} --lora`",
        on_nf4=True,
        beside=True,
    ),
    "lora_level": Strategy(
        "train on {level} itself, put the adapter on it",
        "set base.quantization to gguf and base.level to {level} (recipe demo-gguf shows how)",
        beside=True,
    ),
    "scales_level": Strategy(
        "tune the scales of {level} itself",
        "set base.quantization to gguf, base.level to {level} and train.tuner to scales (recipe demo-scales "
        "shows how), train.learning_rate to 5.0e-3 and train.weight_decay to 0",
    ),
    "distilled_scales": Strategy(
        "distill {level}, then tune its scales",
        "distill the base's {level} with train.method distill and train.tuner scales, then make that file "
        "base.model and train its scales; learning rates are 2.0e-3 and then 5.0e-3, train.weight_decay is 0",
        taught_by="base",
    ),
    "merged_distilled": Strategy(
        "train on NF4, merge into 16 bit, make {level}, distill it from the merged model",
        "set merge.base to 16-bit, and add {level} to quantize.levels and to quantize.distill",
        taught_by="merged",
    ),
}
FOLDER = scratch("compare")


class Job(NamedTuple):
    """One strategy at one level with one seed."""

    strategy: str
    level: str
    seed: int
    is_reference: bool = False  # the merged model in 16 bits, one for each seed

    @classmethod
    def of(cls, item: str) -> "Job":
        """Return the job that Snakemake and DVC call `item`, "lora_level-Q4_K_M-42"."""
        strategy, level, seed = item.split("-")
        return cls(strategy, level, int(seed))

    @property
    def name(self) -> str:
        """The name of the job's files: "lora_level-Q4_K_M-42", or "merged_16-42" for the reference."""
        places = (self.strategy, self.seed) if self.is_reference else (self.strategy, self.level, self.seed)
        return "-".join(map(str, places))

    @property
    def on_nf4(self) -> str:
        """The name of the training on NF4 with its seed: "nf4-42"."""
        return f"nf4-{self.seed}"

    @property
    def training(self) -> str:
        """The name of its own training: "nf4-42" or "lora_level-Q4_K_M-42"."""
        return self.on_nf4 if STRATEGIES[self.strategy].on_nf4 else self.name


def title(strategy: str, level: str) -> str:
    """Return a strategy's title: "train on Q4_K_M itself, put the adapter on it"."""
    return STRATEGIES[strategy].title.format(level=level)
