"""The LoRA adapter on a frozen base: PEFT's settings, the modules that train entirely, and the proof that
both are as specified.

Norms, embeddings and head (`train.modules_to_save`, PEFT's `ModulesToSaveWrapper`) learn as copies; the
base's own stay for the model without its adapter. The copies are float32, because in 16 bit a norm near 1
would not move by a step of the optimizer. The output of norms and embeddings has its type in the base; a
head's logits are float32. Embeddings that are the head too are one copy for both. PEFT matches a name by its
end, so a bare `norm` would be every norm. Here it gets entire paths.
"""

import re
from collections.abc import Iterator, Mapping
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.sections import Training
from pipeline.config.sections.adapters import TABLES
from pipeline.config.targets import is_routed, is_target, layer_of, left_out, rank_of, scale_of, trains_in
from pipeline.config.tuners import ADAPTER_FILE
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.publish import read_json, write_json
from pipeline.models.experts.targets import narrowed, plain_targets
from pipeline.models.qlora import check_layers, linear_names

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

COPY = ".modules_to_save."  # part of their weights' names
OUTSIDE = ("model.norm", "model.embed_tokens", "lm_head")  # paths of modules outside the layers


def lora_config(train: Training) -> Any:
    """Return PEFT's configuration of the adapter, sorted so that its file has the same bytes in every run."""
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
        use_rslora="rslora" in train.lora_variants,
        use_dora=train.use_dora,
        init_lora_weights="gaussian" if "gaussian" in train.lora_variants else True,
        bias="none",
    )


def adapter_config(model: Any, train: Training) -> Any:
    """Return PEFT's settings for `model`, which has no adapter yet: `narrowed` for a mixture, with the
    modules that train entirely. Raises `ConfigError` for settings that the model has no use for.
    """
    config = narrowed(lora_config(train), linear_names(model), train)
    config.modules_to_save = saved_paths(model, train) or None
    config.ensure_weight_tying = bool(train.saved_tables) and is_tied(model)
    return config


def put_adapter(model: Any, train: Training) -> Any:
    """Return the frozen base with the adapter on it, its start drawn from the random state."""
    from peft import get_peft_model

    # The adapter is float32: in 16 bit it would lose small updates, and a resumed run would differ from its
    # first step on.
    model = get_peft_model(model, adapter_config(model, train), autocast_adapter_dtype=True)
    hold_in_float32(model)
    # Compiled layers share a graph, and each of these forwards would be a constant in it.
    if model.device.type == "cpu" and not train.compiled:
        from pipeline.models.lean_lora import lighten

        lighten(model)
    return model


def check_adapter(model: Any, train: Training) -> int:
    """Return the number of trainable parameters, proven to be Σ r·(in + out) over every target of every layer
    that trains (LoRA, arXiv:2106.09685), under DoRA Σ r·(in + out) + out, each at its own r and scale; and
    the norms that train entirely.

    Raises `ConfigError` if a layer lacks a target or a linear outside the layers has an adapter,
    `AssertionError` if anything but LoRA trains or a rank, a scale or the count is off.
    """
    from peft.tuners.lora import LoraLayer

    inside = model.get_base_model()
    matched = {name: module for name, module in inside.named_modules() if isinstance(module, LoraLayer)}
    plain = [name for name in matched if not is_routed(name)]  # Routed experts are checked separately.
    named = [] if isinstance(train.target_modules, str) else plain_targets(train, linear_names(model))
    check_layers(plain, train, named, len(inside.model.layers), "adapters named {}")
    outside = next((name for name in matched if layer_of(name) is None), None)
    if outside:
        raise ConfigError(
            "Q-MODELS-026",
            f"base_model.model.{outside} got an adapter, and only the layers' linears can have one: take it "
            "out of train.target_modules",
        )
    _check_each(model, matched, train)
    training = {
        name: parameter.numel() for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    other = next((name for name in training if ".lora_" not in name and COPY not in name), None)
    if other:
        raise AssertionError(f"{other} is trainable, and only the adapter should be")
    trainable = sum(training.values())
    expected = sum(
        rank_of(name, train) * (layer.in_features + layer.out_features)
        + (layer.out_features if train.use_dora else 0)
        for name, layer in matched.items()
    ) + check_saved(model, train)
    if trainable != expected:
        raise AssertionError(f"{trainable} parameters are trainable, {expected} by the formula")
    return int(trainable)


def _check_each(model: Any, matched: Mapping[str, "LoraLayer"], train: Training) -> None:
    """Raise `AssertionError` unless exactly the targets have an adapter, each with its own rank and scale."""
    linears = (
        name for name, module in model.get_base_model().named_modules() if hasattr(module, "in_features")
    )
    of_an_adapter = re.compile(r".*\.(base_layer|lora_.*)")
    wanted = {name for name in linears if is_target(name, train) and not of_an_adapter.match(name)}
    wrong = sorted(wanted ^ matched.keys())
    if wrong:
        raise AssertionError(f"{wrong[0]} has an adapter and is no target, or the other way round")
    for name, layer in matched.items():
        (adapter,) = layer.r
        rank = layer.r[adapter]
        scale = layer.scaling[adapter]
        if rank != rank_of(name, train) or not isclose(scale, scale_of(name, train)):
            raise AssertionError(f"{name} has rank {rank} and scale {scale}, by the settings it has others")


def saved_paths(model: Any, train: Training) -> list[str]:
    """Return the paths in `model` (without an adapter yet) of the modules that train entirely, sorted. Raises
    `ConfigError` for a name that the model lacks. Embeddings that are the head too are both saved.
    """
    wanted = {*train.modules_to_save}
    if train.saved_tables and is_tied(model):
        wanted |= {*TABLES}
    paths = [
        name
        for name, _ in model.named_modules()
        if name.rpartition(".")[2] in wanted and _is_saved(name, train)
    ]
    ends = {name.rpartition(".")[2] for name in paths}
    unknown = [name for name in train.modules_to_save if name not in ends]
    if unknown:
        raise ConfigError(
            "Q-MODELS-037",
            f"train.modules_to_save names {unknown[0]}, which this base has not: take it out",
        )
    return sorted(paths)


def _is_saved(path: str, train: Training) -> bool:
    """Return True if `train.modules_to_save` can name a module at `path`."""
    layer = layer_of(path)
    return path in OUTSIDE if layer is None else trains_in(layer, train)


def is_tied(model: Any) -> bool:
    """Return True if embeddings and head of a causal model are one table."""
    return bool(model.config.get_text_config().tie_word_embeddings)


def saved_modules(model: Any, adapter: str = "default") -> dict[str, Any]:
    """Return the copies that train with an adapter, by their paths in the base."""
    return {
        path: wrapper.modules_to_save[adapter] for path, wrapper in _saved_wrappers(model, adapter).items()
    }


def _saved_wrappers(model: Any, adapter: str) -> dict[str, Any]:
    """Return PEFT's wrappers of base and copy, by the paths in the base."""
    from peft.utils.other import ModulesToSaveWrapper

    return {
        name.removeprefix("base_model.model."): module
        for name, module in model.named_modules()
        if isinstance(module, ModulesToSaveWrapper) and adapter in module.modules_to_save
    }


def hold_in_float32(model: Any, adapter: str = "default") -> None:
    """Make the copies of `model` float32, and keep the type of the output of norms and embeddings."""
    import torch

    for wrapper in _saved_wrappers(model, adapter).values():
        copy = wrapper.modules_to_save[adapter]
        original = wrapper.original_module
        copy.float()
        if isinstance(original, torch.nn.Embedding):
            # An attribute, because a model may later be set to compute in float32.
            copy.compute_dtype = original.weight.dtype
            copy.register_forward_hook(lambda module, _given, out: out.to(module.compute_dtype))
        elif isinstance(original, torch.nn.Linear):
            copy.register_forward_pre_hook(lambda module, given: (given[0].to(module.weight.dtype),))
        else:
            copy.register_forward_hook(lambda _module, given, out: out.to(given[0].dtype))


def with_adapter(model: Any, adapter: Path, name: str = "default", *, trainable: bool = False) -> Any:
    """Return `model`, which may have other adapters, with PEFT's adapter of a folder. The modules that were
    trained entirely are in float32 as in the folder.
    """
    from peft import PeftModel

    if isinstance(model, PeftModel):
        tuned: Any = model
        tuned.load_adapter(str(adapter), adapter_name=name, is_trainable=trainable)
    else:
        tuned = PeftModel.from_pretrained(model, str(adapter), adapter_name=name, is_trainable=trainable)
    if saved_modules(tuned, name):
        hold_in_float32(tuned, name)
        # Load it once more: now nothing is rounded.
        tuned.load_adapter(str(adapter), adapter_name=name, is_trainable=trainable)
    return tuned


def fill_adapter(model: Any, folder: Path) -> None:
    """Give the adapter that trains on `model` the numbers in `folder`, in float32 as they are there. Raises
    `DataError` if these are not its own: other tensors, other shapes, or two tables where the model has one.

    PEFT itself loads what fits by name and only warns of the rest.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / ADAPTER_FILE
    try:
        numbers = load_file(file)
    except (SafetensorError, OSError) as error:
        raise DataError("Q-MODELS-040", f"{file} can't be read ({error}): copy the adapter again") from error
    weights = _saved(model)
    other = differing_tensors(_shapes(weights), _shapes(numbers))
    if other:
        raise DataError(
            "Q-MODELS-040",
            f"{file} is of another adapter than the one that trains: {other[0]} ({len(other)} of "
            f"{len(numbers)} differ): set section train as it was when that adapter was trained",
        )
    filled: dict[int, str] = {}
    for name, weight in weights.items():
        first = filled.setdefault(weight.data_ptr(), name)
        if not torch.equal(numbers[name], numbers[first]):
            raise DataError(
                "Q-MODELS-040",
                f"{file} has two tables, {first} and {name}, and this base one for both: merge the "
                "adapter, and name the merged model as the base",
            )
        weight.data.copy_(numbers[name])  # Autograd does not see it; see `as_at_start` of the tuners.


def saved_shapes(model: Any, train: Training) -> dict[str, tuple[int, ...]]:
    """Return by name the shapes of the tensors that PEFT saves of the adapter that `train` puts on `model`,
    a base without weights.
    """
    from peft import get_peft_model

    return _shapes(_saved(get_peft_model(model, adapter_config(model, train), autocast_adapter_dtype=False)))


def differing_tensors(
    wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """Return half a sentence on each tensor of an adapter that is missing, unknown or of another shape."""
    return [
        f"{name} is {found.get(name, 'missing')} there and {wanted.get(name, 'no tensor')} here"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]


def _saved(model: Any) -> dict[str, Any]:
    """Return the trained tensors of a model by the names by which PEFT saves them."""
    from peft.utils.save_and_load import get_peft_model_state_dict

    # Without the argument PEFT would look for the base on the hub.
    return dict(get_peft_model_state_dict(model, save_embedding_layers=False))


def _shapes(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_saved(model: Any, train: Training) -> int:
    """Return the number of parameters that train entirely. Raises `AssertionError` unless they are the
    float32 weights of exactly the modules that `train` names.
    """
    import torch

    copies = saved_modules(model)
    wrong = sorted(copies.keys() ^ set(saved_paths(model.get_base_model(), train)))
    if wrong:
        raise AssertionError(f"{wrong[0]} trains whole and should not, or the other way round")
    # Tied weights are counted once.
    weights = {id(weight): weight for copy in copies.values() for weight in copy.parameters()}
    if any(weight.dtype != torch.float32 for weight in weights.values()):
        raise AssertionError("a module that trains whole is not in float32")
    tables = sum(weight.dim() == 2 for weight in weights.values())
    wanted = len(train.saved_tables)
    if wanted and is_tied(model.get_base_model()):
        wanted = 1
    if tables != wanted:
        raise AssertionError(f"{tables} tables train whole, and train.modules_to_save names {wanted}")
    return sum(weight.numel() for weight in weights.values())


def adapter_numbers(model: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield the adapter's matrices, of which B starts at 0, and what the entirely trained modules learned:
    the copy's weight minus the base's, float32. A table that is embeddings and head is yielded once. See
    `Tuner`.
    """
    for name, weight in model.named_parameters():
        if "lora_" in name:
            yield name, weight, "lora_B" in name
    seen = set()
    for path, wrapper in _saved_wrappers(model, "default").items():
        weight = wrapper.modules_to_save["default"].weight
        if id(weight) not in seen:
            seen.add(id(weight))
            yield path, weight.detach() - wrapper.original_module.weight.float(), True


def save_adapter(model: Any, folder: Path) -> None:
    """Write PEFT's folder, the same bytes in every run, without its empty model card (`ship` writes one)."""
    for config in model.peft_config.values():
        config.base_model_name_or_path = "models/base"
    # PEFT saves those that train in any case. Without this argument it would look for the base on the hub.
    model.save_pretrained(folder, save_embedding_layers=False)
    config_file = folder / "adapter_config.json"
    settings = read_json(config_file, "run `snakemake --force train`")
    if not isinstance(settings["target_modules"], str):
        # PEFT has a set, whose order changes from run to run.
        settings["target_modules"] = sorted(settings["target_modules"])
    write_json(config_file, settings)
    (folder / "README.md").unlink(missing_ok=True)
