"""Tuners: what trains on a frozen base (`train.tuner`), for PyTorch models.

Callers use a `Tuner`, not its kind.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config.sections import Train, Training
from pipeline.config.targets import is_router, misfits
from pipeline.config.tuners import TunerName, tuner_of
from pipeline.core.errors import ConfigError
from pipeline.models.read_weights import read_by_parents
from pipeline.models.tuners import lora, scales


class Tuner(NamedTuple):
    """One way to train. `is_on` tells whether a model trains that way.

    `put` returns the base of `load_quantized` with what trains, its start drawn from the random state.
    `check` returns the number of parameters, proven to be what the settings specify in every layer and no
    others. `numbers` yields what was trained: (name, tensor, whether it is 0 as long as nothing was learned).
    `save` writes them into a folder, the same bytes for the same numbers. `load` gives them to a model that
    trains. `restore` puts them on a base of `load_quantized`, which then answers with what was trained.
    Inside `without` a model is what it was before.

    `put` and `check` raise `ConfigError` for what the base lacks, `check` `AssertionError` if anything else
    trains, `load` and `restore` `DataError` for another model's numbers.
    """

    is_on: Callable[[Any], bool]
    put: Callable[[Any, Training], Any]
    check: Callable[[Any, Training], int]
    numbers: Callable[[Any], Iterable[tuple[str, Any, bool]]]
    without: Callable[[Any], AbstractContextManager[Any]]
    save: Callable[[Any, Path], None]
    load: Callable[[Any, Path], None]
    restore: Callable[[Any, Path], Any]


LORA = Tuner(
    is_on=lambda model: hasattr(model, "peft_config"),
    put=lora.put_adapter,
    check=lora.check_adapter,
    numbers=lora.adapter_numbers,
    without=lambda model: model.disable_adapter(),
    save=lora.save_adapter,
    load=lora.fill_adapter,
    restore=lora.with_adapter,
)
SCALES = Tuner(
    is_on=lambda model: bool(scales.trained_changes(model)),
    put=scales.train_scales,
    check=scales.check_scales,
    numbers=lambda model: (
        (f"{name}.change", change, True) for name, change in scales.trained_changes(model).items()
    ),
    without=scales.without_changes,
    save=scales.save_scales,
    load=scales.fill_scales,
    restore=scales.load_scales,
)


TUNERS: Mapping[TunerName, Tuner] = {
    "lora": LORA,
    "scales": SCALES,
}


def tuner_on(model: Any) -> Tuner:
    """Return the tuner that a model trains by."""
    return next((tuner for tuner in TUNERS.values() if tuner.is_on(model)), LORA)


def tuner_in(folder: Path) -> Tuner:
    """Return the tuner that wrote what is in the folder."""
    return TUNERS[tuner_of(folder)]


def restored(model: Any, adapter: Path) -> Any:
    """Return a base of `load_quantized` that answers with what was trained into the folder `adapter`. Raises
    `DataError` for another model's numbers.
    """
    return tuner_in(adapter).restore(model, adapter)


def trained_part(model: Any) -> dict[str, Any]:
    """Return the parameters of `model` that train, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@contextmanager
def as_at_start(model: Any, previous: Path | None) -> Iterator[None]:
    """Yield while `model` answers as before its first step: without what trains, or with the numbers in the
    folder `previous` if training goes on from these. Then it has its own numbers again.
    """
    import torch

    tuner = tuner_on(model)
    if previous is None:
        with tuner.without(model):
            yield
        return
    part = trained_part(model)
    learned = {name: parameter.detach().clone() for name, parameter in part.items()}
    try:
        tuner.load(model, previous)
        torch.clear_autocast_cache()  # It may have 16-bit copies of the numbers that were here.
        yield
    finally:
        for name, parameter in part.items():
            parameter.data.copy_(learned[name])  # A later backward pass finds what its forward had.
        torch.clear_autocast_cache()


def numbers_since(model: Any, previous: Path | None) -> Iterator[tuple[str, Any, bool]]:
    """Yield what trains as `Tuner.numbers` does. With `previous`, from which training went on, yield instead
    how far each parameter has moved from there, which is 0 as long as nothing was learned.
    """
    if previous is None:
        yield from tuner_on(model).numbers(model)
        return
    with as_at_start(model, previous):
        before = {name: parameter.detach().clone() for name, parameter in trained_part(model).items()}
    for name, parameter in trained_part(model).items():
        yield name, parameter.detach() - before[name], True


def put_tuner(model: Any, settings: Training) -> Any:
    """Return the frozen base of `load_quantized` with what trains on it. Layers below the first that trains
    run without autograd, and offloaded layers have their weights in main memory.

    Raises `ConfigError` for targets or layers that the model lacks, `DataError` if a linear has no scales.
    """
    check_targets(model, settings)
    model = TUNERS[settings.tuner].put(model, settings)
    stop_gradients(causal_model(model))
    if settings.offloaded_layers:
        from pipeline.models.offload import offload

        offload(causal_model(model), settings.offloaded_layers)
    return model


def check_targets(model: Any, train: Train) -> None:
    """Raise `ConfigError` for linears, layers or patterns of `train` not in `model` (without an adapter)."""
    linears = [name for name, module in model.named_modules() if hasattr(module, "in_features")]
    problem = next(misfits(train, linears, len(model.model.layers)), None)
    if problem:
        raise ConfigError("Q-MODELS-026", problem)
    if not isinstance(train.target_modules, str):
        return
    pattern = re.compile(train.target_modules)
    apart = read_by_parents(model)
    inside = {name for name in linears if ".layers." in name and not is_router(name) and name not in apart}
    others = (name for name, _ in model.named_modules() if name and name not in inside)
    other = next((name for name in others if pattern.fullmatch(name)), None)
    if other:
        raise ConfigError(
            "Q-MODELS-026",
            f"train.target_modules is {train.target_modules!r}, which matches {other} too, and that is not "
            "a linear of a layer that an adapter works on: make the pattern narrower",
        )


def stop_gradients(model: Any) -> int:
    """Run the layers of `model` (a causal language model) before the first with a parameter that trains
    without autograd. They keep no activation, and the next layer's input needs no gradient. Return their
    number; 0 if the embeddings train.

    PyTorch by itself would not notice under gradient checkpointing that nothing before learns, because
    transformers makes the embeddings' output require a gradient
    (`PreTrainedModel.enable_input_require_grads`): every layer would be recomputed and walked back through.
    """
    import torch

    layers = model.model.layers
    if any(parameter.requires_grad for parameter in model.get_input_embeddings().parameters()):
        return 0
    trains = [any(parameter.requires_grad for parameter in layer.parameters()) for layer in layers]
    first = trains.index(True) if any(trains) else 0
    for layer in layers[:first]:
        # This wraps the class's own forward, which is where transformers puts its checkpointing.
        layer.forward = torch.no_grad()(layer.forward)
    return first


def causal_model(model: Any) -> Any:
    """Return the causal language model itself, below PEFT's wrapping if there is one."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
