"""Check on a small random model of the base's architecture that it can be trained here, and whether rows can
share a sequence. Only config.json is read, so the result is known before the weights are fetched or copied.
"""

from pathlib import Path
from typing import Any

from pipeline.core.errors import DataError, ToolError
from pipeline.core.text import quoted, shortened
from pipeline.gguf.attention_settings import lost_differences
from pipeline.gguf.families.registry import BY_CLASS
from pipeline.gguf.sources import text_config
from pipeline.models.own_targets import default_targets
from pipeline.models.packed_rows import measure
from pipeline.models.small_model import TooLarge, cut_config, empty, small_model
from pipeline.models.text_config import read_text_config


def tried_model(folder: Path) -> str | None:
    """Return why rows can't share a sequence in a model with the config.json in `folder`; None if they can.

    Raises `DataError` if the model can't be built or computed, if llama.cpp would compute it differently, if
    its layers are not where training looks for them, or if no loss here can make its logits.
    """
    try:
        config = read_text_config(folder)
        need_assumed_settings(config, folder)
        need_layers(empty(cut_config(config)), folder)
        model = small_model(config)
    except DataError:
        raise
    except TooLarge as why:
        return f"whether it keeps packed rows apart was not measured ({why})"
    # An untrusted file with any architecture: the libraries raise errors of any kind.
    except Exception as error:
        raise unusable(folder, error) from error
    need_known_logits(model, folder)
    return measure(model).reason or None


def trained_by_default(folder: Path) -> list[str] | str:
    """Return `default_targets` of the model in `folder`. Its weights are known to have as many layers as
    config.json states. Raises `DataError` if it can't be built.
    """
    try:
        return default_targets(folder)
    # An untrusted file, as above. A narrow model lacks some numbers, such as a padding token's id.
    except Exception as error:
        raise unusable(folder, error) from error


def unusable(folder: Path, error: Exception) -> DataError:
    """Return the error for a model that transformers can't build or compute."""
    return DataError(
        "Q-BASE-047",
        f"transformers can't build or compute the model that {folder / 'config.json'} describes "
        f"({shortened(error)}): fetch it again, or take another model",
    )


def need_assumed_settings(config: Any, folder: Path) -> None:
    """Raise `DataError` if config.json differs from what llama.cpp assumes about its family."""
    name = class_name(config)
    family = BY_CLASS.get(name)
    if family is None:
        return
    settings = text_config(config.to_dict())
    for key, assumed in family.assumed_settings(settings).items():
        stated: Any = settings.get(key)
        if stated == assumed:
            continue
        place = key
        if isinstance(assumed, list):
            layer = next(number for number, kind in enumerate(assumed) if stated[number] != kind)
            place = f"{key}[{layer}]"
            stated = stated[layer]
            assumed = assumed[layer]
        raise DataError(
            "Q-BASE-055",
            f"{folder / 'config.json'} has {place} {quoted(stated)}, and llama.cpp computes every {name} of "
            f"these sizes with {quoted(assumed)}, so its GGUF would be another model: take another base",
        )
    for difference in lost_differences(settings, family):
        raise DataError(
            "Q-BASE-055",
            f"the GGUF of {folder / 'config.json'} would be another model, for {difference.field} "
            f"{difference.seen}: take another base",
        )


def class_name(config: Any) -> str:
    """Return the class that a configuration names first; empty if it names none."""
    return str((config.architectures or [""])[0])


def window_in_training(config: Any) -> int | None:
    """Return the tokens that this configuration attends to in training; None if llama.cpp does the same."""
    family = BY_CLASS.get(class_name(config))
    return family.dropped_window(config.to_dict()) if family else None


def need_layers(model: Any, folder: Path) -> None:
    """Raise `DataError` unless the layers are `model.layers`, where an adapter is added and checked."""
    if not hasattr(getattr(model, "model", None), "layers"):
        raise DataError(
            "Q-BASE-048",
            f"{folder} is a {model.config.model_type}, whose layers are not model.layers, where adapters are "
            "put: take another model",
        )


def need_known_logits(model: Any, folder: Path) -> None:
    """Raise `DataError` unless the training losses can compute the model's logits."""
    from pipeline.models.chunked_loss import check_head

    model.requires_grad_(False)
    try:
        check_head(model)
    except (ToolError, AttributeError):  # a head with another name
        raise DataError(
            "Q-BASE-048",
            f"{folder} is a {model.config.model_type}, whose logits are made in a way that no loss here "
            "knows: take another model",
        ) from None
