"""Which settings of section `train` act only under a value of another: a table, what it refuses, and how
`quench methods` shows it. A default is never refused, so that `params.yaml` may have all keys.
"""

from collections.abc import Collection, Iterator
from functools import reduce
from typing import Any, NamedTuple

from pipeline.config.methods import METHODS
from pipeline.config.sections import Train
from pipeline.config.sections.values import Section
from pipeline.config.targets import LORA_ONLY
from pipeline.core.wording import listed


class Only(NamedTuple):
    """`keys`, or all keys of a group, act only if the setting `by` has one of `values`."""

    keys: tuple[str, ...]
    by: str
    values: tuple[str, ...]

    @property
    def condition(self) -> str:
        """ "train.method is dpo or ipo"."""
        return f"train.{self.by} is {listed(self.values, 'or')}"


SERVED = ("rollout_type", "adapter_type", "parallel", "threads", "n_gpu_layers")
CONDITIONS = (
    Only(("reward",), "method", ("sft",)),
    Only(("reward_temperature",), "reward", ("softmax",)),
    Only(("preference.beta",), "method", tuple(name for name, one in METHODS.items() if one.preferences)),
    Only(("preference.sft_weight",), "method", ("dpo", "ipo", "simpo")),
    Only(("preference.simpo_gamma",), "method", ("simpo",)),
    Only(("preference.desirable_weight", "preference.undesirable_weight"), "method", ("kto",)),
    Only(("distill_top_k", "distill_sft_weight"), "method", ("distill",)),
    Only(("grpo",), "method", ("grpo",)),
    Only(tuple(f"grpo.{key}" for key in SERVED), "grpo.rollouts", ("llama-server",)),
    Only(("eva_rows",), "init_lora_weights", ("eva",)),
    Only(LORA_ONLY, "tuner", ("lora",)),
)


def idle(train: Train, elsewhere: Collection[str] = ()) -> Iterator[str]:
    """A sentence on each setting that is not its default and would do nothing; keys in `elsewhere` act in
    other stages.
    """
    for only in CONDITIONS:
        now = _at(train, only.by)
        if now in only.values:
            continue
        for key in (key for named in only.keys for key in _keys(train, named)):
            value = _at(train, key)
            if value != _at(Train(), key) and key not in elsewhere:
                yield (
                    f"train.{key} is {value} and acts only if {only.condition}, but that is {now}: leave "
                    f"{key} out, or set train.{only.by} to {listed(only.values, 'or')}"
                )


def _at(train: Train, key: str) -> Any:
    return reduce(getattr, key.split("."), train)


def _keys(train: Train, named: str) -> list[str]:
    """The key, or of a group all keys."""
    found = _at(train, named)
    return [f"{named}.{key}" for key in type(found).model_fields] if isinstance(found, Section) else [named]
