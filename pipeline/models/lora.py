"""The LoRA adapter on a frozen base: PEFT's settings of it, and the proof that it is what was asked for."""

import re
from collections import Counter
from itertools import product
from math import isclose
from typing import Any

from pipeline.config.sections import Training
from pipeline.config.targets import (
    is_routed,
    is_router,
    is_target,
    left_out,
    misfits,
    rank_of,
    scale_of,
    trains_in,
)
from pipeline.core.errors import ConfigError
from pipeline.models.experts.targets import plain_targets
from pipeline.models.qlora import linear_names
from pipeline.models.saved import COPY, check_saved, saved_paths


def lora_config(train: Training) -> Any:
    """PEFT's configuration of the adapter, sorted so that its file has the same bytes in every run."""
    from peft import LoraConfig

    targets = train.target_modules
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=train.r,
        lora_alpha=train.lora_alpha,
        lora_dropout=train.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=left_out(train),
        rank_pattern=dict(train.rank_pattern),
        use_rslora=train.use_rslora,
        use_dora=train.use_dora,
        init_lora_weights="gaussian" if train.init_lora_weights == "gaussian" else True,
        bias="none",
    )


def check_targets(model: Any, train: Training) -> None:
    """Raise `ConfigError` where `train` names linears, layers or patterns that `model` (without an adapter
    yet) has not.
    """
    linears = [name for name, one in model.named_modules() if hasattr(one, "in_features")]
    if problem := next(misfits(train, linears, len(model.model.layers)), None):
        raise ConfigError("Q-MODELS-026", problem)
    if not isinstance(train.target_modules, str):
        return
    pattern = re.compile(train.target_modules)
    inside = {name for name in linears if ".layers." in name and not is_router(name)}
    others = (name for name, _ in model.named_modules() if name and name not in inside)
    if other := next((name for name in others if pattern.fullmatch(name)), None):
        raise ConfigError(
            "Q-MODELS-026",
            f"train.target_modules is {train.target_modules!r}, which matches {other} too, and that is no "
            "linear of a layer: make the pattern narrower",
        )


def check_adapter(model: Any, train: Training) -> int:
    """The number of trainable parameters, proven to be Σ r·(in + out) over every target of every layer that
    trains (LoRA, arXiv:2106.09685), under DoRA Σ r·(in + out) + out, each at its own r and scale; and the
    norms that train whole.

    Raises `ConfigError` if a layer lacks a target or a linear outside the layers has an adapter,
    `AssertionError` where anything but LoRA trains or a rank, a scale or the count is off.
    """
    from peft.tuners.lora import LoraLayer

    layers = model.get_base_model().model.layers
    matched = {
        f"model.layers.{number}.{name}": module
        for number, layer in enumerate(layers)
        for name, module in layer.named_modules()
        if isinstance(module, LoraLayer)
    }
    # by layer and target: "model.layers.3.self_attn.q_proj" is q_proj of layer 3; routed experts are apart
    ours = [name for name in matched if not is_routed(name)]
    counts = Counter((int(name.split(".")[2]), name.rpartition(".")[2]) for name in ours)
    named = [] if isinstance(train.target_modules, str) else plain_targets(train, linear_names(model))
    training_layers = [number for number in range(len(layers)) if trains_in(number, train)]
    for number, target in product(training_layers, named):
        if counts[number, target] != 1:
            raise ConfigError(
                "Q-MODELS-026",
                f"layer {number} has {counts[number, target]} adapters named {target}, and each layer must "
                "have 1: take targets that all its layers have",
            )
    inside = set(matched.values())
    adapted = ((name, one) for name, one in model.named_modules() if isinstance(one, LoraLayer))
    if outside := next((name for name, one in adapted if one not in inside), None):
        raise ConfigError(
            "Q-MODELS-026",
            f"{outside} got an adapter, and only the layers' linears can have one: take it out of "
            "train.target_modules",
        )
    _check_each(model, matched, train)
    training = {name: one.numel() for name, one in model.named_parameters() if one.requires_grad}
    if other := next((name for name in training if ".lora_" not in name and COPY not in name), None):
        raise AssertionError(f"{other} is trainable, and only the adapter should be")
    trainable = sum(training.values())
    expected = sum(
        rank_of(name, train) * (layer.in_features + layer.out_features)
        + (layer.out_features if train.use_dora else 0)
        for name, layer in matched.items()
    ) + check_saved(model, saved_paths(model.get_base_model(), train))
    if trainable != expected:
        raise AssertionError(f"{trainable} parameters are trainable, {expected} by the formula")
    return int(trainable)


def _check_each(model: Any, matched: dict[str, Any], train: Training) -> None:
    """Raise `AssertionError` unless exactly the targets have an adapter, each of its own rank and scale."""
    linears = (name for name, one in model.get_base_model().named_modules() if hasattr(one, "in_features"))
    of_an_adapter = re.compile(r".*\.(base_layer|lora_.*)")
    wanted = {name for name in linears if is_target(name, train) and not of_an_adapter.match(name)}
    if wrong := sorted(wanted ^ matched.keys()):
        raise AssertionError(f"{wrong[0]} has an adapter and is no target, or the other way round")
    for name, layer in matched.items():
        (adapter,) = layer.r
        found, scale = layer.r[adapter], layer.scaling[adapter]
        if found != rank_of(name, train) or not isclose(scale, scale_of(name, train)):
            raise AssertionError(f"{name} has rank {found} and scale {scale}, by the settings it has others")
