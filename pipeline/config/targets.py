"""The linears that train: by name or pattern, by layer, with their rank and scale (section `train`).

Only this module decides it: the adapter is made, checked and planned by these functions. A linear's path is
its name in transformers' model, `model.layers.3.self_attn.q_proj`. Patterns are PEFT's: `target_modules` as a
text has to match the entire path, a key of `rank_pattern` its end.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from math import sqrt
from typing import Any, TypeVar

from pipeline.config.sections.adapters import DEFAULT_TARGETS
from pipeline.config.sections.training import Train
from pipeline.core.text import plural

PLACE = re.compile(r"(?:^|\.)layers\.(\d+)\.")
ROUTED = re.compile(r"\.experts\.\d+\.")  # part of the path of a routed expert's linear
GATE = "gate"
ROUTER = re.compile(rf"(?:.*\.)?mlp\.{GATE}")  # the path of the router, which chooses a token's experts
PARTS = ("gate_proj", "up_proj", "down_proj")  # linears of an expert
Settings = TypeVar("Settings", bound=Train)


def layer_of(path: str) -> int | None:
    """Return the number of the layer that contains a path; None outside the layers."""
    match = PLACE.search(path)
    return int(match[1]) if match else None


def frozen_layers(train: Train) -> int:
    """Return the number of layers before those of a `train.layers` like `20-`."""
    return int(train.layers.removesuffix("-")) if isinstance(train.layers, str) else 0


def trains_in(layer: int, train: Train) -> bool:
    """Return True if targets of this layer train, which means that it is one of `train.layers`."""
    return layer in train.layers if isinstance(train.layers, list) else layer >= frozen_layers(train)


def is_target(path: str, train: Train) -> bool:
    """Return True if the linear at `path` trains."""
    layer = layer_of(path)
    if layer is None or not trains_in(layer, train) or "target_modules" not in train.tuning.settings:
        return False
    if is_router(path):
        return "router" in (train.experts or ())
    if isinstance(train.target_modules, str):
        return re.fullmatch(train.target_modules, path) is not None
    named = expert_parts(train) if is_routed(path) else train.target_modules
    return path.rpartition(".")[2] in named


def is_routed(name: str) -> bool:
    """Return True if this is the name of a routed expert's linear or of something in it."""
    return ROUTED.search(name) is not None


def is_router(path: str) -> bool:
    """Return True if this is the path of a mixture's router, which only `train.experts` can name."""
    return ROUTER.fullmatch(path) is not None


def together(name: str) -> str:
    """Return a name without the expert's number: the same for all experts of a layer."""
    return ROUTED.sub(".experts.", name)


def part_of(name: str) -> int | None:
    """Return the index of a name within `together`, its expert's number; None outside of routed experts."""
    match = ROUTED.search(name)
    return int(match[0].split(".")[2]) if match else None


def tells_experts_apart(train: Train) -> bool:
    """Return True if patterns of `train` could treat the experts of a layer differently. Names can't."""
    return isinstance(train.target_modules, str) or bool(train.rank_pattern)


def expert_parts(train: Train) -> list[str]:
    """Return the routed experts' matrices that train if targets are named.

    They are those among `target_modules` if `train.experts` is null.
    """
    names = train.target_modules if train.experts is None else train.experts
    return [part for part in PARTS if part in names]


def rank_of(path: str, train: Train) -> int:
    """Return the adapter's rank on the linear at `path`."""
    return int(by_pattern(train.rank_pattern, path, train.r))


def scale_of(path: str, train: Train) -> float:
    """Return the LoRA scale: α ÷ r, with rank-stabilized LoRA α ÷ √r (arXiv:2312.03732)."""
    rank = rank_of(path, train)
    divisor = sqrt(rank) if "rslora" in train.lora_variants else rank
    return train.lora_alpha / divisor


def by_pattern(patterns: Mapping[str, Any] | None, path: str, default: Any) -> Any:
    """Return the value of the first pattern that matches the end of `path`, as PEFT looks for it."""
    return next((value for pattern, value in (patterns or {}).items() if _ends_in(pattern, path)), default)


def left_out(train: Train) -> str | None:
    """Return a pattern of all modules in layers that don't train; None if all do.

    It is for PEFT's `exclude_modules`.
    """
    if isinstance(train.layers, list):
        kept = "|".join(map(str, sorted(set(train.layers))))
        return rf".*\.layers\.(?!(?:{kept})\.).*"
    frozen = "|".join(map(str, range(frozen_layers(train))))
    return rf".*\.layers\.(?:{frozen})\..*" if frozen else None


def misfits(train: Train, paths: Iterable[str], layers: int) -> Iterator[str]:
    """Yield a sentence on each setting of `train` that doesn't fit the model.

    The model has `layers` layers with linears at `paths`. Of routed experts, the first of each layer is
    enough unless `tells_experts_apart`.
    """
    paths = list(paths)
    if frozen_layers(train) >= layers:
        yield (
            f"train.layers is {train.layers} and the model has {plural(layers, 'layer')}, counted from 0, so "
            "none would train: lower it"
        )
    if train.offloaded_layers > layers:
        yield (
            f"train.offload is {train.offload} and the model has {plural(layers, 'layer')}: "
            f"take up to {layers}"
        )
    numbers = train.layers if isinstance(train.layers, list) else []
    beyond = [layer for layer in numbers if layer >= layers]
    if beyond:
        yield (
            f"train.layers names {beyond[0]} and the model has {plural(layers, 'layer')}, counted from 0: "
            f"take numbers up to {layers - 1}"
        )
    hit = [path for path in paths if is_target(path, train)]
    inside = [path for path in paths if layer_of(path) is not None and not is_router(path)]
    names = list(dict.fromkeys(path.rpartition(".")[2] for path in inside))
    wanted = () if isinstance(train.target_modules, str) else train.target_modules
    if GATE in wanted and any(map(is_router, paths)):
        yield (
            f"train.target_modules names {GATE}, a mixture's router, which trains by train.experts: name "
            f"router there, and take {GATE} out"
        )
    elif unknown := sorted(set(wanted) - set(names)):
        yield (
            f"train.target_modules names {', '.join(unknown)}, which this model's layers have not: take some "
            f"of {', '.join(names)}"
        )
    elif not hit and "target_modules" in train.tuning.settings:
        also = "" if train.experts is None else f", train.experts {train.experts}"
        yield (
            f"train.target_modules is {train.target_modules!r}{also}, which matches no linear of the layers "
            f"that train: match whole names, as {next(iter(paths), 'model.layers.0.self_attn.q_proj')}"
        )
    if tells_experts_apart(train) and (other := _unlike(train, paths)):
        yield (
            f"train would treat {other} unlike another expert of its layer, and llama.cpp stores them as one "
            "tensor: write target_modules and rank_pattern so that all experts of a layer are alike"
        )
    for pattern in train.rank_pattern:
        if hit and not any(_ends_in(pattern, path) for path in hit):
            yield (
                f"train.rank_pattern has {pattern}, which no linear that trains ends in: correct "
                "it or remove it"
            )


def with_own_targets(train: Settings, paths: Iterable[str]) -> Settings:
    """Return the settings for a dense model with linears at `paths`.

    They are unchanged unless they contain the default targets, which are replaced by `own_targets`.
    """
    if train.target_modules != DEFAULT_TARGETS:
        return train
    return train.model_copy(update={"target_modules": own_targets(paths)})


def own_targets(paths: Iterable[str]) -> list[str] | str:
    """Return what the default of `train.target_modules` means for a dense model with linears at `paths`.

    It is the default itself if each layer has all of it. Otherwise (fused projections, layers of several
    types) it is all linears: their names if each layer has all of them, or a pattern of their paths in the
    layers.
    """
    paths = list(paths)
    if _has_all(DEFAULT_TARGETS, paths):
        return DEFAULT_TARGETS
    names = list(dict.fromkeys(path.rpartition(".")[2] for path in paths))
    if _has_all(names, paths):
        return names
    inside = dict.fromkeys(PLACE.split(path, maxsplit=1)[-1] for path in paths)
    return rf"(?:.*\.)?layers\.\d+\.(?:{'|'.join(map(re.escape, inside))})"


def _has_all(names: Iterable[str], paths: Iterable[str]) -> bool:
    """Return True if each layer of `paths` has one linear of each of these names."""
    layers: dict[int | None, list[str]] = {}
    for path in paths:
        layers.setdefault(layer_of(path), []).append(path.rpartition(".")[2])
    return all(linears.count(name) == 1 for linears in layers.values() for name in names)


def merged_only(config: Mapping[str, Any]) -> str | None:
    """Return the reason why an adapter of these settings can't be a GGUF of its own; None if it can.

    It is half a sentence. The settings are section `train` or adapter_config.json. llama.cpp adds (α ÷ r)·B·A
    with one α a file and r the matrices' own (`llama-adapter.h`).
    """
    variants = {name: f"use_{name} is on" for name in ("dora", "rslora") if config.get(f"use_{name}")}
    variants |= {name: f"lora_variants names {name}" for name in config.get("lora_variants", ())}
    if "dora" in variants:
        return f"{variants['dora']}, and an adapter's GGUF has no magnitudes"
    if config.get("modules_to_save"):
        return "modules_to_save is set, and an adapter's GGUF has no weights that were trained whole"
    if config.get("alpha_pattern"):
        return "alpha_pattern is set, and an adapter's GGUF has one alpha"
    if "rslora" in variants and config.get("rank_pattern"):
        return f"{variants['rslora']} with rank_pattern, and an adapter's GGUF has one alpha"
    return None


def alpha_alone(config: Mapping[str, Any]) -> float:
    """Return the alpha of an adapter's GGUF, by its adapter_config.json.

    llama.cpp divides it by r, so that of rank-stabilized LoRA is α·√r.
    """
    alpha = float(config["lora_alpha"])
    return alpha * sqrt(config["r"]) if config.get("use_rslora") else alpha


def _unlike(train: Train, paths: Iterable[str]) -> str | None:
    """Return the first routed expert's linear that trains differently from that of earlier experts."""
    seen: dict[str, tuple[int, float] | None] = {}
    for path in filter(is_routed, paths):
        how = (rank_of(path, train), scale_of(path, train)) if is_target(path, train) else None
        if seen.setdefault(together(path), how) != how:
            return path
    return None


def _ends_in(pattern: str, path: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", path) is not None
