"""Adapters of a quantization check (random, trained or two switched), and the check of the switch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.sections import Training
from pipeline.config.tuners import ADAPTER_FILE
from pipeline.core.checks import Check
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import file_hash
from pipeline.extras.nf4.checks import last_logits
from pipeline.llamacpp.logits import Floats
from pipeline.models.merging.adapter import check_patterns, read_settings
from pipeline.models.tuners.lora import hold_in_float32, with_adapter
from pipeline.stages.parity.check import count_check
from pipeline.stages.train.checkpoints import checkpoints_in, defect

NAMES = ("first", "second")  # names of the two adapters that are switched


def random_adapter(model: Any, config: Any, name: str, seed: int) -> Any:
    """Return `model` with a fresh adapter `name`. B is random too, so that the adapter changes something. The
    same seed gives the same adapter on any base.
    """
    import torch
    from peft import PeftModel, get_peft_model

    if isinstance(model, PeftModel):
        model.add_adapter(name, config)
    else:
        model = get_peft_model(model, config, adapter_name=name)
        hold_in_float32(model, name)
    random = torch.Generator().manual_seed(seed)
    for key, weight in sorted(model.named_parameters()):
        if f".lora_A.{name}." in key or f".lora_B.{name}." in key:
            weight.data.copy_(0.1 * torch.randn(weight.shape, generator=random) / weight.shape[1] ** 0.5)
    return model


def put_adapter(
    model: Any, folder: Path | None, config: Any, name: str, seed: int, *, trained: bool = False
) -> Any:
    """Return `model` with the adapter of `folder` as `name`, or with a random one if `folder` is None. The
    first adapter is ready to train. `trained` marks the project's own adapter: the error then names its
    remedy. Raises `DataError` if the adapter does not fit.
    """
    import torch
    from peft import PeftModel

    if folder is None:
        return random_adapter(model, config, name, seed)
    check_patterns(read_settings(folder), (path for path, _ in model.named_modules()), folder)
    try:
        return with_adapter(model, folder, name, trainable=not isinstance(model, PeftModel))
    except torch.OutOfMemoryError:
        raise  # A RuntimeError too, but the adapter may fit.
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        misfit = f"{folder} does not fit this base ({str(error).splitlines()[0]})"
        if trained:
            raise DataError("Q-COMMANDS-027", f"{misfit}: run `snakemake --force train`") from error
        raise DataError(
            "Q-COMMANDS-029", f"{misfit}: name two that were trained on it with --adapter"
        ) from error


def saved_adapters(root: Path, named: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Return two adapter folders to switch between: the `named` ones, otherwise the trained one and the
    newest other checkpoint. Returns () if there are not two.

    Raises `ConfigError` for any other number of given ones, and `DataError` for one that is missing or
    incomplete.
    """
    if named:
        if len(named) != 2:
            raise ConfigError(
                "Q-COMMANDS-028",
                f"--adapter is given {len(named)} times, and two adapters are switched: give it twice",
            )
        incomplete = [folder for folder in named if not is_complete(folder)]
        if incomplete:
            raise DataError(
                "Q-COMMANDS-029",
                f"{incomplete[0]} is not an adapter (adapter_config.json and adapter_model.safetensors): "
                "name a folder that training wrote",
            )
        return tuple(named)
    checkpoints = [
        folder for folder in reversed(checkpoints_in(root / "models/checkpoints")) if defect(folder) is None
    ]
    adapters: dict[str, Path] = {}
    for folder in filter(is_complete, (root / "models/adapter", *checkpoints)):
        adapters.setdefault(file_hash(folder / ADAPTER_FILE), folder)
        if len(adapters) == 2:
            return tuple(adapters.values())
    return ()


def is_complete(folder: Path) -> bool:
    """Return True if a folder contains an adapter's settings and weights."""
    return (folder / "adapter_config.json").is_file() and (folder / ADAPTER_FILE).is_file()


def check_settings(adapter: Path, settings: Training) -> None:
    """Raise `DataError` unless the adapter is complete and has the rank and targets of `settings`."""
    saved = read_settings(adapter)
    trained = saved.r, _named(saved.target_modules or [])
    if not (adapter / ADAPTER_FILE).is_file():
        raise DataError("Q-COMMANDS-027", f"{adapter} has no {ADAPTER_FILE}: run `snakemake --force train`")
    targets = _named(settings.target_modules)
    if trained != (settings.r, targets):
        raise DataError(
            "Q-COMMANDS-027",
            f"{adapter} has rank {trained[0]} on {trained[1]}, and params.yaml says {settings.r} on "
            f"{targets}: put that back, or train again",
        )


def _named(targets: list[str] | str) -> str:
    """Return targets (names in any order, or a pattern) as one string."""
    return targets if isinstance(targets, str) else ", ".join(sorted(targets))


def swap_line(model: Any, config: Any, rows: list[list[int]], adapters: Sequence[Path] = ()) -> Check:
    """Check that adapters can be switched on `model`, a quantized base without an adapter. Switching must
    give each adapter's own outputs, and switching them off the base's outputs, bit for bit. `model` is left
    without an adapter.

    Each of the two `adapters` is first measured alone on the base. Then both are put on it and switched:
    first, second, first, none. `adapters` are folders; without them, two random adapters are made as `config`
    describes.
    """

    folders = dict(zip(NAMES, adapters or (None, None), strict=True))

    def put_on(bare: Any, name: str) -> Any:
        return put_adapter(bare, folders[name], config, name, 1 + NAMES.index(name))

    bare = last_logits(model, rows)
    logits_of = {}
    for name in NAMES:
        adapted = put_on(model, name)
        logits_of[name] = last_logits(adapted, rows)
        model = taken_off(adapted)
    title = "Two adapters on one NF4 base"
    what = "switches whose logits differ from the adapter's alone (the last: the base's)"
    adapters_text = (
        " and ".join(f"{adapter.parent.name}/{adapter.name}" for adapter in adapters)
        or "two random adapters, for no two saved ones are here"
    )
    if same(logits_of["first"], logits_of["second"]) or same(logits_of["first"], bare):
        return Check(
            title,
            "not measured",
            f"the adapters say the same or nothing, so switching proves nothing; {adapters_text}",
            what=what,
        )
    adapted = put_on(put_on(model, "first"), "second")
    pairs: list[tuple[list[Floats], list[Floats]]] = []
    for name in ("first", "second", "first"):
        adapted.set_adapter(name)
        pairs.append((last_logits(adapted, rows), logits_of[name]))
    with adapted.disable_adapter():
        pairs.append((last_logits(adapted, rows), bare))
    taken_off(adapted)
    different = [number for number, pair in enumerate(pairs, 1) if not same(*pair)]
    first_fault = f"switch {different[0]}" if different else ""
    line = count_check(title, what, len(different), len(pairs), first_fault)
    return replace(line, sentence=f"{line.sentence}; {adapters_text}")


def taken_off(adapted: Any) -> Any:
    """Return the base that the adapters of `adapted` were put on, unchanged. PEFT's `unload` would leave a
    copy in the place of each norm that was trained as a whole.
    """
    from peft.utils.other import ModulesToSaveWrapper

    originals = {
        name: module.original_module
        for name, module in adapted.get_base_model().named_modules()
        if isinstance(module, ModulesToSaveWrapper)
    }
    model = adapted.unload()
    for name, original in originals.items():
        model.set_submodule(name, original)
    return model


def same(first: list[Floats], second: list[Floats]) -> bool:
    """Return True if the logits of two runs are equal bit for bit."""
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
