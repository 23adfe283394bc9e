"""The trained scales of a GGUF's blocks (`train.tuner: scales`): in a model that trains, in the folder that
training writes, and as in the tuned file.

The folder contains `scales.safetensors`: by the linear's name the change of its scales, float32 (scales of a
block, rows in transformers' order, blocks of a row).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.config.sections import Training
from pipeline.config.targets import is_target
from pipeline.config.tuners import SCALES_FILE
from pipeline.core.errors import DataError, GateError
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.tensors import SCALES
from pipeline.models.qlora import check_layers
from pipeline.models.tensors import full_weight

AGAIN = "run `snakemake --force train`"


def trained_changes(model: Any) -> dict[str, Any]:
    """Return the changes of all scales that train, by the linear's name; none under LoRA."""
    from pipeline.models.tuners.scaled_linear import ScaledLinear

    return {name: module.change for name, module in model.named_modules() if isinstance(module, ScaledLinear)}


def train_scales(model: Any, settings: Training) -> Any:
    """Return `model`, which is not a mixture of experts, with scales that train in every target."""
    from pipeline.models.tuners.scaled_linear import put_scales

    put_scales(model, lambda path: is_target(path, settings))
    return model


@contextmanager
def without_changes(model: Any) -> Iterator[None]:
    """Yield the model as it is with the file's scales while the body runs."""
    changes = list(trained_changes(model).values())
    learned = [change.detach().clone() for change in changes]
    try:
        for change in changes:
            change.data.zero_()  # Autograd does not see this: a later backward pass has the values again.
        yield
    finally:
        for change, before in zip(changes, learned, strict=True):
            change.data.copy_(before)


def save_scales(model: Any, folder: Path) -> None:
    """Write the changes of a model's scales into `folder`."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    numbers = {name: change.detach().cpu().contiguous() for name, change in trained_changes(model).items()}
    save_file(numbers, folder / SCALES_FILE)


def fill_scales(model: Any, folder: Path) -> None:
    """Give the scales of `model` the changes in `folder`. Raises `DataError` if these are not its own."""
    wanted = trained_changes(model)
    filled = set()
    for name, change in read_changes(folder):
        if name not in wanted or change.shape != wanted[name].shape:
            raise _of_another_model(folder, name)
        wanted[name].data.copy_(change)  # Autograd does not see it; see `as_at_start` of the tuners.
        filled.add(name)
    missing = sorted(wanted.keys() - filled)
    if missing:
        raise _of_another_model(folder, missing[0])


def read_changes(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield (linear's name, float32 change of its scales) of the folder's scales.safetensors, one at a time.
    Raises `DataError` for a file that is cut off or contains other numbers.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    file = folder / SCALES_FILE
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no dict)
                change = opened.get_tensor(name)
                if change.dtype != torch.float32:
                    raise DataError(
                        "Q-MODELS-033", f"{file} holds {name} as {change.dtype}, not as float32: {AGAIN}"
                    )
                yield name, change
    except (SafetensorError, OSError) as error:
        raise DataError("Q-MODELS-033", f"{file} can't be read ({error}): {AGAIN}") from error


def _of_another_model(folder: Path, name: str) -> DataError:
    return DataError(
        "Q-MODELS-033", f"{folder / SCALES_FILE} holds the scales of another model ({name}): {AGAIN}"
    )


def load_scales(model: Any, adapter: Path) -> Any:
    """Return a model of `load_gguf` with the scales that were trained in the folder `adapter`. Raises
    `DataError` if they are not its own.
    """
    from pipeline.models.tuners.scaled_linear import put_scales

    put_scales(model, {name for name, _ in read_changes(adapter)}.__contains__)
    fill_scales(model, adapter)
    return model


def file_scales(base: Path, adapter: Path) -> Iterator[tuple[str, Any]]:
    """Yield (tensor's name, its scales as in the tuned file) for every tensor that trained: float16 (scales
    of a block, rows in the file's order, blocks of a row). `base` is the folder with the GGUF.

    Raises `DataError` for scales that do not belong to this file, `GateError` for one that is not a number.
    """
    import torch

    from pipeline.gguf.scales import changed_scales, stored_scales
    from pipeline.gguf.tensors import gguf_tensors
    from pipeline.models.loading import read_config
    from pipeline.models.quantized_model import tensor_names

    header, tensors = gguf_tensors(base / MODEL_FILE)
    names = tensor_names(read_config(base), header, base / MODEL_FILE)
    for path, change in read_changes(adapter):
        parameter = f"{path}.weight"
        tensor = tensors.get(names.map.get_name(parameter, try_suffixes=(".weight",)) or "")
        if tensor is None or tensor.ggml_type not in SCALES:
            raise _of_another_model(adapter, path)
        stored = stored_scales(torch.from_numpy(tensor.stored(0, tensor.rows)), tensor.ggml_type)
        if change.shape != stored.shape:
            raise _of_another_model(adapter, path)
        if not bool(change.isfinite().all()):
            raise GateError(
                "Q-GGUF-020",
                f"a trained scale of {tensor.name} is not a number: lower train.learning_rate, then {AGAIN}",
            )
        moved = torch.stack([names.in_file_order(parameter, scales) for scales in change])
        yield tensor.name, changed_scales(stored, moved)


def check_scales(model: Any, settings: Training) -> int:
    """Return the number of trainable parameters, proven to be the scales of every target in every layer that
    trains and no others. See `Tuner`.
    """
    changes = trained_changes(model)
    wrong = sorted(name for name in changes if not is_target(name, settings))
    if wrong:
        raise AssertionError(f"{wrong[0]} trains, and is no target")
    named = [] if isinstance(settings.target_modules, str) else settings.target_modules
    what = "linears named {} whose scales could train"
    check_layers(changes, settings, named, len(model.model.layers), what)
    training = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    other = sorted(training ^ {f"{name}.change" for name in changes})
    if other:
        raise AssertionError(f"{other[0]} is trainable, and only the scales should be, or is not")
    return sum(change.numel() for change in changes.values())


def unchanged_in_file(model: Any) -> bool:
    """Return True if scales train and each still equals the file's once it is rounded to float16."""
    import torch

    from pipeline.models.tuners.scaled_linear import ScaledLinear

    scaled = [module for module in model.modules() if isinstance(module, ScaledLinear)]
    # All are computed: if the base is sharded, the other processes wait for each.
    same = [torch.equal(linear.tuned().weight, full_weight(linear.weight)) for linear in scaled]
    return bool(scaled) and all(same)
