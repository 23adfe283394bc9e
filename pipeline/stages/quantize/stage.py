"""Quantize the 16-bit GGUF to one level with llama.cpp's own quantizer.

Reads `models/gguf/NAME-F16.gguf` (or BF16), `NAME-base-F16.gguf` for a level of the untuned base
(base-LEVEL), and `models/imatrix/` for a level that is spelled LEVEL-imatrix. Writes
`models/gguf/NAME-LEVEL.gguf`. Command: `python -m pipeline quantize@Q4_K_M`
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.levels import UNTUNED, ModelName
from pipeline.config.params import Params
from pipeline.core.errors import ConfigError
from pipeline.gguf.file import K_BLOCK, PLAIN_TYPES, SMALLEST_BLOCK, describe
from pipeline.llamacpp.converters import Quantizing, quantize_gguf
from pipeline.llamacpp.tools import find_llama


def fallback_warning(record: Mapping[str, Any]) -> str | None:
    """Return one sentence about the tensors that could not get the level's type; None if all did."""
    types = dict(record["fallback_types"])
    if not types:
        return None
    sixteen = sum(types.pop(kind, 0) for kind in PLAIN_TYPES)
    parts = []
    if types:
        named = ", ".join(f"{count} to {kind}" for kind, count in types.items())
        parts.append(
            f"{sum(types.values())} of {record['tensors']} tensors fell back ({named}): their rows are not a "
            f"multiple of {K_BLOCK} weights, which the level's type packs together"
        )
    if sixteen:
        parts.append(
            f"{sixteen} of {record['tensors']} tensors stay at 16 bit: their rows are not a multiple of "
            f"{SMALLEST_BLOCK} weights, the smallest block of any level"
        )
    return f"{'; '.join(parts)}; so the file has {record['bits_per_weight']:.2f} bits per weight"


def find_imatrix(folder: Path, level: str) -> Path:
    """Return the importance matrix in `folder`. Raises `ConfigError` if stage imatrix made none."""
    file = folder / "imatrix.gguf"
    if not file.exists():
        raise ConfigError(
            "Q-QUANTIZE-001",
            f"level {level} needs an importance matrix and {folder} has none: run `snakemake "
            "--force imatrix`",
        )
    return file


def main(params: Params, root: Path, level: str) -> None:
    """Run the stage for one level on the files below `root`. Raises `ConfigError` if `quantize.levels` does
    not list the level.
    """
    if level not in params.quantize.levels:
        raise ConfigError(
            "Q-QUANTIZE-002",
            f"{level} is not in quantize.levels ({', '.join(params.quantize.levels)}): add it there, spelled "
            "the same",
        )
    folder = root / "models/gguf"
    name = params.convert.name
    model = ModelName(level)
    sixteen = f"{UNTUNED if model.untuned else ''}{params.convert.type}"
    source = folder / f"{name}-{sixteen}.gguf"
    target = folder / f"{name}-{level}.gguf"
    options = Quantizing(
        imatrix=find_imatrix(root / "models/imatrix", level) if model.imatrix else None,
        tensor_types=params.quantize.tensor_types,
    )
    quantize_gguf(find_llama(params.machine), source, target, model.level, options)
    record = describe(target)
    print(f"quantize: {name}-{level}.gguf {record['bytes'] / 1e6:.0f} MB")
    warning = fallback_warning(record)
    if warning:
        print(f"quantize: warning: {warning}")
