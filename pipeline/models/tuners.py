"""What trains on a frozen base (`train.tuner`): a LoRA adapter by PEFT (`pipeline.models.lora`), or the
scales of a GGUF's blocks (`pipeline.models.scales`).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pipeline.config.sections import Training
from pipeline.config.targets import is_routed, is_target
from pipeline.gguf.base_files import is_scales
from pipeline.models.experts.targets import check_mixture
from pipeline.models.lora import check_adapter, check_targets, put_adapter, saved_changes
from pipeline.models.qlora import linear_names
from pipeline.models.scales import check_scales, fill_scales, trained_changes, without_changes, write_changes


def put_tuner(model: Any, settings: Training) -> Any:
    """The frozen base of `load_quantized` with what trains on it; an adapter's start is drawn from the random
    state. Layers below the first that trains run without autograd, and those that are offloaded have their
    weights in main memory.

    Raises `ConfigError` for targets or layers that the model lacks, `DataError` if a linear has no scales.
    """
    check_targets(model, settings)
    if settings.tuner == "lora":
        model = put_adapter(model, settings)
    else:
        from pipeline.models.scaled_linear import put_scales

        check_mixture(settings, mixture=any(map(is_routed, linear_names(model))))
        put_scales(model, lambda path: is_target(path, settings))
    stop_gradients(causal_model(model))
    if settings.offloaded_layers:
        from pipeline.models.offload import offload

        offload(causal_model(model), settings.offloaded_layers)
    return model


def stop_gradients(model: Any) -> int:
    """Run the layers of `model` (a causal language model) before the first with a parameter that trains
    without autograd: they keep no activation, and the next layer's input needs no gradient. Their number.

    PyTorch alone would not notice that nothing before learns under gradient checkpointing, where transformers
    makes the embeddings' output ask for a gradient (`PreTrainedModel.enable_input_require_grads`): every
    layer would be recomputed and walked back through.
    """
    import torch

    layers = model.model.layers
    first = next((number for number, layer in enumerate(layers) if _trains(layer)), 0)
    for layer in layers[:first]:
        # over the class's own forward, which is where transformers puts its checkpointing
        layer.forward = torch.no_grad()(layer.forward)
    return first


def _trains(module: Any) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def causal_model(model: Any) -> Any:
    """The causal language model itself, below PEFT's wrapping if there is one."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def without_tuner(model: Any) -> AbstractContextManager[Any]:
    """The model as it is without what trains on it: an adapter switched off, scales as the file has them."""
    return model.disable_adapter() if hasattr(model, "disable_adapter") else without_changes(model)


def save_trained(model: Any, folder: Path | str) -> None:
    """Write what was trained into `folder`, the same bytes for the same numbers."""
    if changes := trained_changes(model):
        write_changes(changes, Path(folder))
    else:
        # embeddings are frozen; without this, PEFT would look for the base on the hub
        model.save_pretrained(folder, save_embedding_layers=False)


def load_trained(model: Any, folder: Path) -> None:
    """Give `model` what `save_trained` wrote into `folder`. Raises `DataError` for another model's scales."""
    if is_scales(folder):
        fill_scales(model, folder)
    else:
        model.load_adapter(str(folder), model.active_adapters[0], is_trainable=True)


def check_tuner(model: Any, settings: Training) -> int:
    """The number of trainable parameters, proven to be what `settings` ask for in every layer and no others.

    Raises `ConfigError` if a layer lacks a target, `AssertionError` if anything else trains.
    """
    if settings.tuner == "lora":
        return check_adapter(model, settings)
    return check_scales(model, settings)


def trained_numbers(model: Any) -> Iterator[tuple[str, Any, bool]]:
    """(name, tensor, whether it is 0 as long as nothing was learned) of everything that was trained."""
    for name, weight in model.named_parameters():
        if "lora_" in name:
            yield name, weight, "lora_B" in name
        elif name.endswith(".change"):
            yield name, weight, True
    yield from ((name, change, True) for name, change in saved_changes(model))
