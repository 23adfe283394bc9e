"""Choose the matrices of a mixture's routed experts that get an adapter (`train.experts`), and write PEFT's
settings for them.

A routed expert's linear is `….mlp.experts.7.gate_proj`. A shared expert's (`….mlp.shared_expert.gate_proj`)
is an ordinary linear, for `train.target_modules`.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pipeline.config.methods import METHODS
from pipeline.config.sections import Train
from pipeline.config.targets import GATE, PARTS, ROUTED, ROUTER, expert_parts, is_routed
from pipeline.core.errors import ConfigError


def idle_experts(learned: Iterable[tuple[str, bool]]) -> dict[str, int]:
    """Return the number of routed experts among these (names of tensors, whether they learned something) and
    how many of them learned nothing. The second number is reported on stderr. Empty for a dense model.
    """
    experts: dict[str, bool] = {}
    for name, moved in learned:
        match = ROUTED.search(name)
        if match:
            expert = name[: match.end()]  # "….layers.3.mlp.experts.7."
            experts[expert] = experts.get(expert, False) or moved
    idle = len(experts) - sum(experts.values())
    if idle:
        print(
            f"train: {idle} of {len(experts)} routed experts got no token, so their adapters change nothing",
            file=sys.stderr,
        )
    return {"experts_adapted": len(experts), "experts_idle": idle} if experts else {}


def plain_targets(train: Train, linears: Sequence[str]) -> list[str]:
    """Return `target_modules` without those that only routed experts have, for a model of these `linears`."""
    only_routed = {leaf(name) for name in linears if is_routed(name)} - {
        leaf(name) for name in linears if not is_routed(name)
    }
    return [name for name in train.target_modules if name not in only_routed]


def leaf(name: str) -> str:
    """Return the last part of a module's name."""
    return name.rpartition(".")[2]


# Each entry is (True for a mixture, False for a dense base; condition; message).
REFUSED: Sequence[tuple[bool, Callable[[Train], object], str]] = (
    (
        False,
        lambda train: train.experts is not None,
        "train.experts is {0.experts}, and this base has no routed experts and no router: set it to null",
    ),
    (
        True,
        lambda train: train.experts not in (None, ["router"]) and isinstance(train.target_modules, str),
        "train.target_modules is a pattern, which says of experts too what trains: set train.experts to null "
        "or [router]",
    ),
    (
        True,
        lambda train: train.use_dora,
        "train.lora_variants names dora, and this base is a mixture of experts, which was never tried: take "
        "it out",
    ),
    (
        True,
        lambda train: train.loss == "liger",
        "train.loss is liger, whose kernels replace a mixture's experts by its own, which can't be quantized "
        "or adapted: set it to auto or chunked",
    ),
    (
        True,
        lambda train: METHODS[train.method].teacher,
        "train.method is {0.method}, and this base is a mixture of experts, which was never tried: set it to "
        "sft",
    ),
    (
        True,
        lambda train: train.modules_to_save,
        "train.modules_to_save names {0.modules_to_save}, and this base is a mixture of experts, of which "
        "nothing was trained whole yet: set it to []",
    ),
    (
        True,
        lambda train: not train.tuning.mixtures,
        "train.tuner is {0.tuner}, and this base is a mixture of experts, whose {0.tuner} can't be trained: "
        "set it to lora",
    ),
)


def check_mixture(train: Train, *, mixture: bool) -> None:
    """Raise `ConfigError` for settings that a dense base or a mixture has no use for."""
    for of_mixture, when, sentence in REFUSED:
        if mixture is of_mixture and when(train):
            raise ConfigError("Q-MODELS-034", sentence.format(train))


def narrowed(config: Any, names: list[str], train: Train) -> Any:
    """Return PEFT's `LoraConfig` for a model with linears of these `names`, with the chosen matrices of the
    experts; unchanged for a dense model. Raises what `check_mixture` does.
    """
    routed = [name for name in names if is_routed(name)]
    check_mixture(train, mixture=bool(routed))
    if not routed:
        return config
    routers = [GATE] if "router" in (train.experts or ()) else []
    if isinstance(train.target_modules, str):
        config.target_modules = "|".join([train.target_modules, *(ROUTER.pattern for _ in routers)])
        return config
    parts = expert_parts(train)
    plain = plain_targets(train, names)
    config.target_modules = {*plain, *parts, *routers}
    shared = {leaf(name) for name in names if not is_routed(name)}
    others = [rf".*\.experts\.\d+\.{part}" for part in PARTS if part in plain and part not in parts]
    others += [rf"(?!.*\.experts\.\d+\.).*\.{part}" for part in parts if part in shared and part not in plain]
    # PEFT matches it as a pattern against the entire name.
    config.exclude_modules = "|".join(filter(None, [config.exclude_modules, *others])) or None
    return config
