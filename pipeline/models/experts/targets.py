"""Which matrices of a mixture's routed experts get an adapter (`train.target_experts`), and PEFT's settings
for that.

A routed expert's linear is `….mlp.experts.7.gate_proj`; a shared expert's (`….mlp.shared_expert.gate_proj`)
is an ordinary linear, for `train.target_modules`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.config.sections import Train
from pipeline.core.errors import ConfigError

PARTS = ("gate_proj", "up_proj", "down_proj")
NUMBER = re.compile(r"\.experts\.\d+\.")


def is_routed(name: str) -> bool:
    """Whether this is the name of a routed expert's linear or of something in it."""
    return NUMBER.search(name) is not None


def together(name: str) -> str:
    """A name without the expert's number: the same for all experts of a layer."""
    return NUMBER.sub(".experts.", name)


def expert_of(name: str) -> str | None:
    """The routed expert, "….layers.3.mlp.experts.7", that a name is in; None outside of experts."""
    found = NUMBER.search(name)
    return name[: found.end() - 1] if found else None


def expert_number(name: str) -> int | None:
    """Which of its layer's routed experts a name is in; None outside of experts."""
    found = NUMBER.search(name)
    return int(found[0].split(".")[2]) if found else None


def expert_parts(train: Train) -> list[str]:
    """The routed experts' matrices that get an adapter; where nothing is said, those among
    `target_modules`.
    """
    asked = train.target_modules if train.target_experts is None else train.target_experts
    return [part for part in PARTS if part in asked]


def plain_targets(train: Train, linears: Sequence[str]) -> list[str]:
    """`target_modules` without those that only routed experts have, of a model with these `linears`."""
    only_routed = {leaf(name) for name in linears if is_routed(name)} - {
        leaf(name) for name in linears if not is_routed(name)
    }
    return [name for name in train.target_modules if name not in only_routed]


def check_routed(matched: Iterable[str], linears: Sequence[str], train: Train) -> None:
    """Raise `AssertionError` unless, of all `linears`, those routed experts' have an adapter (are
    `matched`) that the settings ask for.
    """
    parts, found = expert_parts(train), {name for name in matched if is_routed(name)}
    wanted = {name for name in linears if is_routed(name) and leaf(name) in parts}
    if odd := sorted(wanted ^ found):
        raise AssertionError(f"{odd[0]} has an adapter and should have none, or the other way round")


def leaf(name: str) -> str:
    """The last part of a module's name."""
    return name.rpartition(".")[2]


def check_mixture(train: Train, *, mixture: bool) -> None:
    """Raise `ConfigError` for settings that a dense base or a mixture has no use for."""
    if not mixture and train.target_experts is not None:
        raise ConfigError(
            "Q-MODELS-034",
            f"train.target_experts is {train.target_experts}, and this base has no routed experts: set it to "
            "null",
        )
    if mixture and train.tuner == "scales":
        raise ConfigError(
            "Q-MODELS-034",
            "train.tuner is scales, and this base is a mixture of experts, whose scales can't be trained: "
            "set it to lora",
        )


def narrowed(config: Any, names: list[str], train: Train) -> Any:
    """PEFT's `LoraConfig` for a model with linears of these `names`, told which experts' matrices are
    meant; as it is for a dense model. Raises what `check_mixture` does.
    """
    routed = [name for name in names if is_routed(name)]
    check_mixture(train, mixture=bool(routed))
    if not routed:
        return config
    parts = expert_parts(train)
    plain = plain_targets(train, names)
    config.target_modules = {*plain, *parts}
    shared = {leaf(name) for name in names if not is_routed(name)}
    left_out = [rf".*\.experts\.\d+\.{part}" for part in PARTS if part in plain and part not in parts]
    left_out += [
        rf"(?!.*\.experts\.\d+\.).*\.{part}" for part in parts if part in shared and part not in plain
    ]
    config.exclude_modules = "|".join(left_out) or None  # a pattern, matched against the entire name
    return config
