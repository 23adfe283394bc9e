"""Bring the adapter or the scales that training goes on from (`train.start_from`) into the project. They are
checked to be of this base, and of the settings that they are trained further with.

Reads `models/base/`, `models/base.json` and the folder that the setting names: PEFT's, or trained scales, or
a project with either in `models/adapter/`. Writes `models/previous/`: the trained numbers, PEFT's
`adapter_config.json` and the `run.json` of a training by Quench. The stage is there if `train.start_from` is
set. Command: `python -m pipeline previous`
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.config.sections import Training
from pipeline.config.targets import layer_of
from pipeline.config.tuners import ADAPTER_FILE, SCALES_FILE, trained_file, tuner_of
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.places import expanded
from pipeline.core.publish import need_disk, publishing, read_json
from pipeline.gguf.base_files import base_hashes
from pipeline.gguf.safetensors_rows import read_header
from pipeline.models.experts.separate import has_experts
from pipeline.models.merging.adapter import Adapter, other_base_named, read_adapter
from pipeline.models.own_targets import fitted, linear_widths
from pipeline.models.small_model import empty
from pipeline.models.text_config import read_text_config
from pipeline.models.tuners.lora import differing_tensors, saved_shapes
from pipeline.stages.previous.settings import MERGE_IT, differing, settings_of

CONFIG = "adapter_config.json"
RUN = "run.json"


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`. Raises `DataError` for a folder without an adapter, one that a
    merge could not follow, or one of another base, `ConfigError` for one that was trained with other
    settings.
    """
    named = str(params.train.start_from)
    source = folder_of(root / expanded(named, "train.start_from"))
    base = root / "models/base"
    need_tuner(source, params.training)
    need_base(source, base)
    numbers = trained_file(source)
    need_numbers(numbers)
    if params.train.tuner == "lora":
        need_settings(read_adapter(source), base, params.training)
    tell_other_base(source, root / "models/base.json")
    target = root / "models/previous"
    need_disk(target.parent, numbers.stat().st_size)
    with publishing(target) as aside:
        aside.mkdir()
        for name in (numbers.name, CONFIG, RUN):
            if (source / name).is_file():
                shutil.copyfile(source / name, aside / name)
    print(f"previous: {numbers.name} {numbers.stat().st_size / 1e6:.1f} MB, from {source}")


def folder_of(source: Path) -> Path:
    """Return the folder with trained numbers: `source`, or the models/adapter of the project that it is.
    Raises `DataError` if there are none.
    """
    try:
        for folder in (source, source / "models/adapter"):
            if trained_file(folder).is_file():
                return folder
    except OSError as error:  # of a name that is too long, or a folder that may not be read
        why = f"can't be looked into ({error.strerror}): name another folder, or make it readable"
        raise DataError("Q-PREVIOUS-001", f"train.start_from: {source} {why}") from error
    if source.is_file():
        why = "is a file: name the folder that it is in"
    elif not source.is_dir():
        why = "is no folder here: name one, and fetch an adapter from the hub before (`hf download`)"
    else:
        why = f"holds neither {ADAPTER_FILE} nor {SCALES_FILE}: {_instead(source)}"
    raise DataError("Q-PREVIOUS-001", f"train.start_from: {source} {why}")


def _instead(source: Path) -> str:
    """Return what to do about a folder without trained numbers, by what it holds instead."""
    if (source / "adapter_model.bin").is_file():
        return "save the pickle that it holds, which may run any code, again as safetensors"
    if (source / "adapters.safetensors").is_file():
        return "mlx-lm's form is not read, fuse it there, and name the fused model as the base"
    if (source / "dvc.lock").is_file():
        return "run `dvc pull models/adapter` or `quench run train` in that project"
    checkpoints = sorted(path.name for path in source.glob("checkpoint-*") if path.is_dir())
    if checkpoints:
        return f"name one of its checkpoints, {checkpoints[-1]} for example"
    return "name the folder that does"


def need_numbers(file: Path) -> None:
    """Raise `DataError` if a file of trained numbers can't be read, or if one is not finite."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            names = list(opened.keys())
            broken = [name for name in names if not opened.get_tensor(name).isfinite().all()]
    except (SafetensorError, OSError, RuntimeError) as error:
        raise DataError("Q-PREVIOUS-006", f"{file} can't be read ({error}): copy it again, whole") from error
    if broken:
        raise DataError(
            "Q-PREVIOUS-006",
            f"{len(broken)} of {len(names)} tensors in {file} have numbers that are not finite "
            f"({broken[0]}): go on from an earlier checkpoint",
        )


def need_tuner(source: Path, settings: Training) -> None:
    """Raise `ConfigError` if `source` holds what another `train.tuner` trains."""
    if tuner_of(source) != settings.tuner:
        raise ConfigError(
            "Q-PREVIOUS-002",
            f"{source} holds {trained_file(source).name}, and train.tuner is {settings.tuner}: set it to "
            f"{tuner_of(source)}",
        )


def need_base(source: Path, base: Path) -> None:
    """Raise `DataError` if Quench trained what is in `source` on other weights than the base's."""
    if not (source / RUN).is_file():  # Another tool's adapter has no such record.
        return
    record = read_json(source / RUN, "copy the adapter's folder whole")
    recorded = record.get("base") if isinstance(record, dict) else None
    trained_on = recorded.get("weights_sha256") if isinstance(recorded, dict) else None
    if isinstance(trained_on, str) and trained_on != base_hashes(base)["weights_sha256"]:
        raise DataError(
            "Q-PREVIOUS-003",
            f"{source} was trained on other weights than {base} holds (run.json names sha256 "
            f"{trained_on[:12]}…): name the base that it was trained on in section base",
        )


def need_settings(adapter: Adapter, base: Path, settings: Training) -> None:
    """Raise `DataError` if the adapter is on linears that the base has not, or in a way that section `train`
    can't express, `ConfigError` if section `train` says something else.

    A mixture's linears and tensors are compared by training, when its experts are apart.
    """
    settings = fitted(settings, base)
    config = read_text_config(base)
    widths = None if has_experts(config) else linear_widths(config)
    if widths is not None:
        need_linears(adapter, widths)
    wanted = settings_of(adapter, settings, widths)
    if widths is not None:
        need_tensors(adapter.folder, config, settings.model_copy(update=wanted))
    other = differing(wanted, settings, widths, ties_tables=adapter.settings.ensure_weight_tying)
    if other:
        lines = ", ".join(f"train.{key}: {_yaml(value)}" for key, value in other.items())
        raise ConfigError(
            "Q-PREVIOUS-004",
            f"{adapter.folder} was trained with other settings than params.yaml has, and can go on with its "
            f"own only: set {lines}",
        )


def need_linears(adapter: Adapter, widths: dict[str, tuple[int, int]]) -> None:
    """Raise `DataError` if a module of the adapter is no linear in the layers of the base (`widths`: by path
    its inputs and outputs), or has another shape.
    """
    for module in adapter.modules:
        if layer_of(module.path) is None:
            raise DataError(
                "Q-PREVIOUS-005",
                f"{adapter.folder} adapts {module.path}, and only the layers' linears can be adapted here: "
                f"{MERGE_IT}",
            )
        a = module.parts.get("lora_A.weight")
        b = module.parts.get("lora_B.weight")
        here = widths.get(module.path)
        is_pair = a and b and len(a.shape) == 2 and len(b.shape) == 2
        there = (a.shape[1], b.shape[0]) if a and b and is_pair else None
        if here is None or here != there:
            raise DataError(
                "Q-PREVIOUS-003",
                f"{adapter.folder} is of another model: its {module.path} has {_inputs_outputs(there)}, in "
                f"models/base it has {_inputs_outputs(here)}: name the base that it was trained on in "
                "section base",
            )


def need_tensors(folder: Path, config: Any, settings: Training) -> None:
    """Raise `DataError` if an adapter has other tensors than the one that section `train` makes on a dense
    base of this `config`.
    """
    found = {entry.name: entry.shape for entry in read_header(trained_file(folder))}
    other = differing_tensors(saved_shapes(empty(config), settings), found)
    if other:
        raise DataError(
            "Q-PREVIOUS-005",
            f"{folder} has tensors that section train can't make: {other[0]} ({len(other)} differ): "
            f"{MERGE_IT}",
        )


def _inputs_outputs(width: tuple[int, int] | None) -> str:
    return f"{width[0]} inputs and {width[1]} outputs" if width else "no matrix of that name"


def tell_other_base(source: Path, lineage: Path) -> None:
    """Say on stderr if the adapter's maker names a base whose name is not in that of the project's (`lineage`
    is models/base.json): shapes alone prove no base.
    """
    if not (source / CONFIG).is_file():
        return
    record = read_json(lineage, "run `snakemake base`")
    here = [str(record[key]) for key in ("model", "file") if record.get(key)]
    named = other_base_named(source, here)
    if named:
        print(
            f"previous: {CONFIG} names {named} as its base, and this project's is {' '.join(here)}: see that "
            "both are the same model, for another finetune of the same size has the same shapes",
            file=sys.stderr,
        )


def _yaml(value: Any) -> str:
    """Return a setting as it is written in params.yaml, in one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return json.dumps(value) if isinstance(value, (dict, str)) else str(value or "null")
