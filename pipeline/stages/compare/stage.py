"""Measure the ways to ship on the project's own data, each with several seeds: merged into 16 bit or NF4, or an adapter on a level of the base.

Reads `models/base/`, `models/base.json`, `models/gguf/NAME-base-F16.gguf`, `data/tokens/`, `data/final/` and `data/evaluation/`.
Writes `reports/ways.json` (no seeds in it where `compare.seeds` is []); works in `models/.compare/`, where figures of earlier runs stay.
Command: `python -m pipeline compare`
"""

import sys
import time
from pathlib import Path
from typing import Any

from pipeline.chat.held_out import answerable_rows
from pipeline.config.params import Params
from pipeline.config.sections import UNTUNED
from pipeline.config.strategies import FOLDER
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.locks import absent
from pipeline.core.publish import need_disk, remove, write_json
from pipeline.gguf.base_files import DENSE
from pipeline.llamacpp.tools import find_toolchain
from pipeline.models.base_header import checked_header
from pipeline.planning.disk import own_bytes, plan_disk
from pipeline.planning.level_bytes import level_bytes
from pipeline.planning.quantized import SCRATCH, packed_level
from pipeline.planning.shape import load_shape
from pipeline.stages.compare.plan import RECORDS, Plan
from pipeline.stages.compare.steps import measure_all, size_of
from pipeline.stages.compare.summary import summarise

TARGET = Path("reports/ways.json")


def compare(root: Path, params: Params) -> dict[str, Any]:
    """Train and measure every way of `compare.levels` with every seed of `compare.seeds`; what reports/ways.json holds.

    Goes on from what an earlier run finished. Raises `DataError` where something is missing or no row can be scored, `ConfigError` for a level
    that can't be trained on, `MachineError` where the disk is too small, and whatever a stage ends with.
    """
    settings, evaluate = params.compare, params.evaluate
    need_inputs(root, params)
    need_trainable(root, params)
    started = time.monotonic()
    rows = answerable_rows(root / "data/final/test.jsonl", settings.rows, evaluate.seed)
    plan = Plan(root.resolve(), decided(params), rows, find_toolchain(params.llamacpp.home))
    seeds, levels = settings.seeds, settings.levels
    forget_others(plan.folder, {*levels, *(f"{name}-{seed}" for name in ("NF4", "W16", "NF4M", *levels) for seed in seeds)})
    measurements = plan.measurements()
    waiting = sum(one.known() is None for one in measurements)
    if waiting:
        need_disk(root / FOLDER, scratch_bytes(root, params))
        print(f"compare: {waiting} of {len(measurements)} measurements to make, on {len(rows)} rows", flush=True)
    figures = measure_all(measurements, lambda words: print(f"compare: {words}", file=sys.stderr, flush=True))
    found = summarise(figures, seeds=seeds, levels=levels, sixteen=params.convert.type, scorer=evaluate.scorer, seed=evaluate.seed)
    return found | {"seconds": round(time.monotonic() - started, 1)}


def decided(params: Params) -> Params:
    """`params` with the type that training computes in on this machine: `auto` is another one elsewhere, and figures of both aren't comparable."""
    chosen = params.training.bnb_4bit_compute_dtype
    return params.model_copy(update={"train": params.train.model_copy(update={"bnb_4bit_compute_dtype": chosen})})


def need_inputs(root: Path, params: Params) -> None:
    """Raise `DataError` that names what is not there yet; the data come as they are."""
    base = f"models/gguf/{params.convert.name}-{UNTUNED}{params.convert.type}.gguf"
    stages = {
        "models/base/config.json": "base", "models/base.json": "base", "data/final/test.jsonl": "curate", "data/tokens/manifest.json": "preprocess",
        base: "convert",
    }  # fmt: skip
    for place, stage in stages.items():
        if not (root / place).exists():
            raise absent(root / place, root, stage)


def need_trainable(root: Path, params: Params) -> None:
    """Raise `ConfigError` for a base or a level that can't be trained on as a GGUF: hours before its own sub-project would."""
    try:
        header = checked_header(root / f"models/gguf/{params.convert.name}-{UNTUNED}{params.convert.type}.gguf")
    except DataError as error:
        why = f"for this base can't be trained on as a GGUF: {error}"
        raise ConfigError(f"the ways to ship can't be compared, {why}. Set compare.seeds to []") from None
    if (architecture := header.fields["general.architecture"]) not in DENSE:
        raise ConfigError(f"the ways to ship can't be compared for {architecture}, only for {', '.join(DENSE)}: set compare.seeds to []")
    shape = load_shape(root / "models/base/config.json")
    for level in params.compare.levels:
        if unknown := sorted(packed_level(shape, level).kinds - set(SCRATCH)):
            raise ConfigError(f"compare.levels has {level}, whose type {' and '.join(unknown)} can't be trained on: take Q4_K_M, Q6_K or Q8_0, say")
    for pattern, kind in params.quantize.tensor_types.items():
        if kind.upper() not in SCRATCH:
            raise ConfigError(f"quantize.tensor_types.{pattern} asks for {kind}, which can't be trained on, as compare does: take Q4_K or Q8_0, say")


def scratch_bytes(root: Path, params: Params) -> int:
    """Bytes that lie in the scratch folder at most: one seed's training, merge and GGUFs, and every level of the base twice while it is made."""
    shape = load_shape(root / "models/base/config.json")
    levels = params.compare.levels
    sizes = plan_disk(shape, params.training_on("cpu"), levels)
    sixteen = size_of(root / "models/base")
    return max(own_bytes(sizes), 3 * sixteen) + 2 * sum(level_bytes(shape, level) for level in levels)


def forget_others(folder: Path, asked: set[str]) -> None:
    """Delete sub-projects of seeds and levels that are not asked for any more; figures stay."""
    for path in folder.glob("*"):
        if path.name not in {RECORDS, *asked}:
            remove(path)


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`."""
    if not params.compare.seeds:
        forget_others(root / FOLDER, set())
        write_json(root / TARGET, {"seeds": []})
        print("compare: not measured, for compare.seeds is []: set it to [42, 43, 44], say, to see which way to ship is best on your data")
        return
    found = compare(root, params)
    write_json(root / TARGET, found)
    for level in found["levels"].values():
        print(f"compare: {level['sentence']}")
