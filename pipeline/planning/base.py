"""What is planned for: the shape and, where it stays quantized, the bytes of the base that `params.yaml`
names, from what is here or by its name.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.config.sections import Base
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.places import expanded
from pipeline.planning.card import Card
from pipeline.planning.duration import work_in
from pipeline.planning.level_bytes import level_bytes
from pipeline.planning.plan import Plan, make_plan
from pipeline.planning.published import published_shape
from pipeline.planning.quantized import (
    MODEL_FILE,
    SOURCE_FILE,
    QuantizedBase,
    gguf_shape,
    level_of,
    quantized_file,
    quantized_level,
)
from pipeline.planning.shape import Shape, load_shape


def plan_run(
    params: Params,
    shape: Shape,
    root: Path,
    card: Card | None,
    *,
    tflops: float | None = None,
    processes: int = 1,
) -> Plan:
    """`make_plan` with the settings of `params` and what is here of its base and rows. Raises `ConfigError`
    or `DataError` as that and `find_quantized` do.
    """
    return make_plan(
        shape,
        params.training_on(card.device if card else "cuda"),
        params.preprocess.max_length,
        [*params.quantize.files, *params.quantize.untuned],
        card,
        work_in(root, params.train),
        tflops,
        quantized=find_quantized(params, shape, root),
        lora=params.lora.type,
        untuned=params.convert.base,
        processes=processes,
    )


def find_shape(params: Params, root: Path) -> Shape:
    """The shape of the base that `params` names: from its config.json or GGUF where it is here, else a
    published one.

    Raises `ConfigError` where neither is known, `DataError` for a file that can't be read.
    """
    base = params.base
    if base.source == "path":
        return load_shape(root / expanded(base.model, "base.model") / "config.json")
    if is_here(base, root):
        return load_shape(root / "models" / "base" / "config.json")
    if (file := own_file(base, root)) is not None:
        return gguf_shape(file, unpacked=base.quantization != "gguf" and base.tie == "auto")
    shape = published_shape(base.model, base.file)
    if shape is None:
        raise ConfigError(
            "Q-PLANNING-001",
            f"the base {base.model} is not here and its shape is not known: run `snakemake base`, or name "
            "its config.json with --config",
        )
    return shape


def find_quantized(params: Params, shape: Shape, root: Path) -> QuantizedBase | None:
    """What the base takes as the GGUF that is trained on; None where training is not on a GGUF.

    From the file's header where it is here: models/base/model.gguf, or the user's own where no level is made
    of it. Else computed, from `base.level` or the level in the file's name; `ConfigError` where it has none,
    `DataError` for a damaged file.
    """
    base = params.base
    if base.quantization != "gguf":
        return None
    folder, own = root / "models" / "base", own_file(base, root)
    if (folder / MODEL_FILE).is_file() and is_here(base, root):
        original = (folder / SOURCE_FILE).stat().st_size if (folder / SOURCE_FILE).is_file() else 0
        return replace(quantized_file(folder / MODEL_FILE), made_from=original)
    if base.level is None:
        return quantized_file(own) if own else quantized_level(shape, level_of(base.file or base.model))
    original = own.stat().st_size if own else level_bytes(shape, level_of(base.file or base.model))
    return replace(quantized_level(shape, base.level), made_from=original)


def own_file(base: Base, root: Path) -> Path | None:
    """The user's own GGUF, where `base` names one that is there."""
    file = root / expanded(base.model, "base.model")
    return file if base.source == "gguf" and file.is_file() else None


def is_here(base: Base, root: Path) -> bool:
    """Whether models/base holds this base. Raises `DataError` where its record is damaged."""
    record = root / "models" / "base.json"
    if not (record.is_file() and (root / "models" / "base" / "config.json").is_file()):
        return False
    try:
        facts: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        same = (facts["model"], facts["revision"]) == (base.model, base.revision)
        # older records don't say these
        return same and all(
            facts.get(key, getattr(base, key)) == getattr(base, key)
            for key in ("file", "level", "sha256", "tie")
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            "Q-PLANNING-002", f"{record} is not what stage base wrote: run `snakemake --force base`"
        ) from error
