"""The keys of section `train` that make an adapter like one that is there."""

import re
from collections.abc import Iterable, Mapping
from math import isclose
from typing import Any

from pydantic import ValidationError

from pipeline.config.sections import Training
from pipeline.config.sections.adapters import TABLES
from pipeline.config.targets import PLACE, is_target, layer_of, scale_of
from pipeline.core.errors import DataError
from pipeline.core.text import faults
from pipeline.models.merging.adapter import Adapter

# The other variants say how training begins and goes, and not what the adapter is.
OF_THE_ADAPTER = ("rslora", "dora")
MERGE_IT = "merge it, and name the merged model as the base"


def settings_of(adapter: Adapter, train: Training, linears: Iterable[str] | None) -> dict[str, Any]:
    """Return the keys of section `train` by which PEFT makes an adapter of the same shape and scale.

    `linears` are the paths of the base's; None for a mixture, whose targets are left out. All other keys are
    those of `train`.

    Raises `DataError` if there are no such keys.
    """
    made = adapter.settings
    keys: dict[str, Any] = {
        "r": made.r,
        "lora_alpha": int(made.lora_alpha),
        "rank_pattern": made.rank_pattern or {},
        "lora_variants": [name for name in OF_THE_ADAPTER if getattr(made, f"use_{name}")],
        "modules_to_save": sorted({path.rpartition(".")[2] for path in made.modules_to_save or ()}),
    }
    plain = Training.model_construct(**keys)
    for module in adapter.modules:
        if not isclose(adapter.scale(module.path), scale_of(module.path, plain)):
            raise DataError(
                "Q-PREVIOUS-005",
                f"{adapter.folder} scales {module.path} by {adapter.scale(module.path):g} "
                "(alpha_pattern, or a lora_alpha that is no whole number), and section train has no key for "
                f"that: {MERGE_IT}",
            )
    if linears is not None:
        keys |= _targets(adapter, {module.path for module in adapter.modules}, list(linears))
    try:
        Training.model_validate(train.model_dump() | keys)
    except ValidationError as error:
        what = faults(error, lambda place: str(place[0]) if place else "it")
        raise DataError(
            "Q-PREVIOUS-005",
            f"{adapter.folder} has settings that section train can't have ({what}): {MERGE_IT}",
        ) from None
    return keys


def _targets(adapter: Adapter, trained: set[str], linears: list[str]) -> dict[str, Any]:
    """Return the keys that name the linears `trained`, by names or else by a pattern."""
    layers = _layers(trained)
    every = _layers(linears)
    names = list(dict.fromkeys(path.rpartition(".")[2] for path in linears if path in trained))
    places = dict.fromkeys(PLACE.split(path, maxsplit=1)[-1] for path in linears if path in trained)
    pattern = rf".*\.layers\.\d+\.(?:{'|'.join(map(re.escape, places))})"
    for targets in (names, pattern):
        keys: dict[str, Any] = {"target_modules": targets, "layers": None if layers == every else layers}
        if _trained(linears, Training.model_construct(**keys)) == trained:
            return keys
    raise DataError(
        "Q-PREVIOUS-005",
        f"{adapter.folder} adapts other linears in one layer than in another, which section train can't "
        f"name: {MERGE_IT}",
    )


def _layers(paths: Iterable[str]) -> list[int]:
    return sorted({layer for layer in map(layer_of, paths) if layer is not None})


def _trained(linears: Iterable[str], train: Training) -> set[str]:
    return {path for path in linears if is_target(path, train)}


def _saved(names: Iterable[str], *, ties_tables: bool) -> set[str]:
    """Return the modules that are saved if these are named."""
    named = set(names)
    return named.union(TABLES) if ties_tables and not named.isdisjoint(TABLES) else named


def differing(
    wanted: Mapping[str, Any], train: Training, linears: Iterable[str] | None, *, ties_tables: bool
) -> dict[str, Any]:
    """Return those of the `wanted` keys (`settings_of`) that section `train` has otherwise, with the values
    that it would need.

    Targets are compared by the `linears` that they are, not by their spelling. With `ties_tables` embeddings
    and head are one table, whichever is named.
    """
    plain = ("r", "lora_alpha", "rank_pattern")
    other = {key: wanted[key] for key in plain if getattr(train, key) != wanted[key]}
    variants = [name for name in train.lora_variants if name not in OF_THE_ADAPTER]
    if {*train.lora_variants} != {*wanted["lora_variants"], *variants}:
        other["lora_variants"] = [*wanted["lora_variants"], *variants]
    saved = _saved(train.modules_to_save, ties_tables=ties_tables)
    if saved != _saved(wanted["modules_to_save"], ties_tables=ties_tables):
        other["modules_to_save"] = wanted["modules_to_save"]
    if linears is not None:
        keys = {key: wanted[key] for key in ("target_modules", "layers")}
        if _trained(linears, train) != _trained(linears, train.model_copy(update=keys)):
            other |= {key: value for key, value in keys.items() if getattr(train, key) != value}
    return other
