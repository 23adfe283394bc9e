"""Find the linears that train on a dense base by a model without weights, before any weights are loaded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.config.sections.adapters import DEFAULT_TARGETS
from pipeline.config.targets import Settings, layer_of, own_targets, with_own_targets
from pipeline.models.experts.separate import has_experts
from pipeline.models.qlora import check_layers
from pipeline.models.read_weights import read_by_parents
from pipeline.models.small_model import empty
from pipeline.models.text_config import read_text_config
from pipeline.models.tuners import check_targets


def fitted(train: Settings, base: Path) -> Settings:
    """Return the settings for the model in `base`: unchanged, or with its own linears instead of the
    default's if its layers don't have all of these. A mixture's settings stay unchanged.

    Raises `ConfigError` for targets or layers that the model lacks.
    """
    config = read_text_config(base)
    if "target_modules" not in train.tuning.settings or has_experts(config):
        return train
    model = empty(config)
    paths = list(linears(model))
    train = with_own_targets(train, paths)
    check_targets(model, train)
    if not isinstance(train.target_modules, str):
        check_layers(paths, train, train.target_modules, len(model.model.layers), "linears named {}")
    return train


def default_targets(base: Path) -> list[str] | str:
    """Return the targets that the default of `train.target_modules` stands for on the model in `base`."""
    config = read_text_config(base)
    if has_experts(config):
        return DEFAULT_TARGETS
    return own_targets(linears(empty(config)))


def linear_widths(config: Any) -> dict[str, tuple[int, int]]:
    """Return by its path the inputs and outputs of each linear in the layers of a dense model by `config`."""
    model = empty(config)
    modules = {path: model.get_submodule(path) for path in linears(model)}
    return {path: (module.in_features, module.out_features) for path, module in modules.items()}


def linears(model: Any) -> Iterator[str]:
    """Yield the paths of the linears in the layers of a dense model that can have an adapter."""
    apart = read_by_parents(model)
    for name, module in model.named_modules():
        if layer_of(name) is not None and hasattr(module, "in_features") and name not in apart:
            yield name
