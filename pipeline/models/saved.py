"""Norms that train whole beside the adapter (`train.modules_to_save`, PEFT's `ModulesToSaveWrapper`): copies
learn, the base's own stay for the model without its adapter.

The copies are float32, for in 16 bit a norm near 1 would not move by a step of the optimizer; what they give
has their input's type, as in the base. PEFT matches a name by its end, so `norm` alone would be every norm:
here it is told entire paths.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.sections import Training
from pipeline.config.targets import layer_of, trains_in
from pipeline.core.errors import ConfigError

COPY = ".modules_to_save."  # in the names of their weights


def saved_paths(model: Any, train: Training) -> list[str]:
    """The paths in `model` (without an adapter yet) of the modules that train whole, sorted. Raises
    `ConfigError` for a name that its layers haven't.
    """
    found = [name for name, _ in model.named_modules() if _is_saved(name, train)]
    ends = {name.rpartition(".")[2] for name in found}
    if unknown := [name for name in train.modules_to_save if name not in ends]:
        raise ConfigError(
            "Q-MODELS-037",
            f"train.modules_to_save names {unknown[0]}, which this base has not: take it out",
        )
    return sorted(found)


def _is_saved(path: str, train: Training) -> bool:
    layer = layer_of(path)
    inside = path == "model.norm" if layer is None else trains_in(layer, train)
    return inside and path.rpartition(".")[2] in train.modules_to_save


def saved_modules(model: Any, adapter: str = "default") -> dict[str, Any]:
    """The copies that train with an adapter, by their paths in the base."""
    from peft.utils.other import ModulesToSaveWrapper

    return {
        name.removeprefix("base_model.model."): one.modules_to_save[adapter]
        for name, one in model.named_modules()
        if isinstance(one, ModulesToSaveWrapper) and adapter in one.modules_to_save
    }


def saved_changes(model: Any) -> Iterator[tuple[str, Any]]:
    """(path, what was learned: the copy's weight less the base's, float32) of every module that trains
    whole.
    """
    copies = saved_modules(model)
    for path, wrapper in ((path, model.get_base_model().get_submodule(path)) for path in copies):
        yield path, copies[path].weight.detach() - wrapper.original_module.weight.float()


def hold_in_float32(model: Any, adapter: str = "default") -> None:
    """Make the copies of `model` float32, and what they give of their input's type."""
    for copy in saved_modules(model, adapter).values():
        copy.float()
        copy.register_forward_hook(lambda _module, given, out: out.to(given[0].dtype))


def with_adapter(model: Any, adapter: Path, name: str = "default", *, trainable: bool = False) -> Any:
    """`model` with PEFT's adapter of a folder, norms that were trained whole in float32 as they are there."""
    from peft import PeftModel

    tuned = PeftModel.from_pretrained(model, str(adapter), adapter_name=name, is_trainable=trainable)
    if saved_modules(tuned, name):
        hold_in_float32(tuned, name)
        # once more: now nothing is rounded
        tuned.load_adapter(str(adapter), adapter_name=name, is_trainable=trainable)
    return tuned


def check_saved(model: Any, wanted: Sequence[str]) -> int:
    """The number of parameters that train whole. Raises `AssertionError` unless they are the float32 weights
    of exactly the `wanted` modules.
    """
    import torch

    copies = saved_modules(model)
    if wrong := sorted(copies.keys() ^ set(wanted)):
        raise AssertionError(f"{wrong[0]} trains whole and should not, or the other way round")
    weights = [weight for copy in copies.values() for weight in copy.parameters()]
    if any(weight.dtype != torch.float32 or weight.dim() != 1 for weight in weights):
        raise AssertionError("a module that trains whole is no norm in float32")
    return sum(weight.numel() for weight in weights)
