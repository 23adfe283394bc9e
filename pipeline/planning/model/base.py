"""The subject of a plan: the shape and, if it stays quantized, the bytes of the base that `params.yaml`
names, from local files or from its name.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.config.sections import Base
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.places import expanded
from pipeline.gguf.base_files import MODEL_FILE, SOURCE_FILE
from pipeline.planning.model.config_file import load_shape, read_shape
from pipeline.planning.model.gguf_base import (
    LEVEL_NAMES,
    QuantizedBase,
    gguf_shape,
    level_of,
    quantized_file,
    quantized_level,
)
from pipeline.planning.model.level_bytes import level_bytes
from pipeline.planning.model.shape import KEYS, MIXTURE_KEYS, Shape

# Shapes of published models, so that a recipe can be planned before its base is here: numbers from each
# model's config.json on the Hugging Face Hub. The tests compare the parameters that follow with the published
# counts. The key is the name of the model in lower case, without "-instruct" and "-base". The value is
# (model_type, values of KEYS, followed for a mixture by those of MIXTURE_KEYS that it has).
PUBLISHED: dict[str, tuple[str, tuple[int | bool, ...]]] = {
    "smollm2-135m": ("llama", (576, 1536, 30, 9, 3, 64, 8_192, 49_152, True)),
    "qwen2.5-0.5b": ("qwen2", (896, 4_864, 24, 14, 2, 64, 32_768, 151_936, True)),
    "qwen2.5-1.5b": ("qwen2", (1_536, 8_960, 28, 12, 2, 128, 32_768, 151_936, True)),
    "qwen2.5-3b": ("qwen2", (2_048, 11_008, 36, 16, 2, 128, 32_768, 151_936, True)),
    "qwen2.5-7b": ("qwen2", (3_584, 18_944, 28, 28, 4, 128, 32_768, 152_064, False)),
    "qwen2.5-14b": ("qwen2", (5_120, 13_824, 48, 40, 8, 128, 32_768, 152_064, False)),
    "qwen2.5-32b": ("qwen2", (5_120, 27_648, 64, 40, 8, 128, 32_768, 152_064, False)),
    "qwen3-0.6b": ("qwen3", (1_024, 3_072, 28, 16, 8, 128, 40_960, 151_936, True)),
    "qwen3-1.7b": ("qwen3", (2_048, 6_144, 28, 16, 8, 128, 40_960, 151_936, True)),
    "qwen3-4b": ("qwen3", (2_560, 9_728, 36, 32, 8, 128, 40_960, 151_936, True)),
    "qwen3-8b": ("qwen3", (4_096, 12_288, 36, 32, 8, 128, 40_960, 151_936, False)),
    "qwen3-14b": ("qwen3", (5_120, 17_408, 40, 40, 8, 128, 40_960, 151_936, False)),
    "qwen3-32b": ("qwen3", (5_120, 25_600, 64, 64, 8, 128, 40_960, 151_936, False)),
    "qwen3-30b-a3b": (
        "qwen3_moe",
        (2_048, 6_144, 48, 32, 4, 128, 40_960, 151_936, False, 128, 8, 768, 0, True),
    ),
    "qwen3-30b-a3b-2507": (
        "qwen3_moe",
        (2_048, 6_144, 48, 32, 4, 128, 262_144, 151_936, False, 128, 8, 768, 0, True),
    ),
    "qwen1.5-moe-a2.7b-chat": (
        "qwen2_moe",
        (2_048, 5_632, 24, 16, 16, 128, 8_192, 151_936, False, 60, 4, 1_408, 5_632),
    ),
    "mixtral-8x7b-v0.1": ("mixtral", (4_096, 14_336, 32, 32, 8, 128, 32_768, 32_000, False, 8, 2)),
    "llama-3.2-1b": ("llama", (2_048, 8_192, 16, 32, 8, 64, 131_072, 128_256, True)),
    "llama-3.2-3b": ("llama", (3_072, 8_192, 28, 24, 8, 128, 131_072, 128_256, True)),
    "llama-3.1-8b": ("llama", (4_096, 14_336, 32, 32, 8, 128, 131_072, 128_256, False)),
    "phi-4-mini": ("phi3", (3_072, 8_192, 32, 24, 8, 128, 131_072, 200_064, True)),
    "smollm3-3b": ("smollm3", (2_048, 11_008, 36, 16, 4, 128, 65_536, 128_256, True)),
    "gemma-3-1b-it": ("gemma3_text", (1_152, 6_912, 26, 4, 1, 256, 32_768, 262_144, True)),
    "granite-3.3-2b": ("granite", (2_048, 8_192, 40, 32, 8, 64, 131_072, 49_159, True)),
    "olmo-2-0425-1b": ("olmo2", (2_048, 8_192, 16, 16, 16, 128, 4_096, 100_352, False)),
    "mistral-7b-v0.3": ("mistral", (4_096, 14_336, 32, 32, 8, 128, 32_768, 32_768, False)),
}


def find_shape(params: Params, root: Path, *, build: bool = True) -> Shape:
    """Return the shape of `params`' base, from its config.json or GGUF if it is here, or a published one.

    An architecture that has to be built is built only if `build` is set (`read_shape`). Raises `ConfigError`
    if neither is known, `DataError` for a file that can't be read.
    """
    base = params.base
    folder = root / expanded(base.model, "base.model")
    if base.source == "path" and folder.is_dir():
        return load_shape(folder / "config.json", build=build)
    if is_here(base, root):
        return load_shape(root / "models" / "base" / "config.json", build=build)
    file = own_file(base, root)
    if file is not None:
        unpacked = base.quantization != "gguf" and base.tie == "auto"
        return gguf_shape(file, unpacked=unpacked, build=build)
    shape = published_shape(base.model, base.file, build=build)
    if shape is None:
        raise ConfigError(
            "Q-PLANNING-001",
            f"the base {base.model} is not here and its shape is not known: run `snakemake base`, or name "
            "its config.json with --config",
        )
    return shape


def published_shape(model: str, file: str | None = None, *, build: bool = True) -> Shape | None:
    """Return the shape of `base.model` ("Qwen/Qwen2.5-7B-Instruct") or a GGUF's file name; None if unknown.

    Raises `ConfigError` for one that would have to be built (`read_shape`) unless `build` is set.
    """
    for name in (file or "", model):
        last = name.rpartition("/")[2].lower().removesuffix(".gguf").removesuffix("-gguf")
        last = last.replace("qwen2.5-coder", "qwen2.5")  # same shapes
        plain = re.sub(rf"-(instruct|base)\b|[-.](?:{LEVEL_NAMES.lower()}|fp16)$", "", last)
        if plain in PUBLISHED:
            kind, values = PUBLISHED[plain]
            config = {"model_type": kind, **dict(zip(KEYS, values[: len(KEYS)], strict=True))}
            routing = dict(zip(MIXTURE_KEYS, values[len(KEYS) :], strict=False))
            return read_shape(config | routing, model, build=build)
    return None


def find_quantized(params: Params, shape: Shape, root: Path) -> QuantizedBase | None:
    """Return the sizes of the base as the GGUF that is trained on; None if training is not on a GGUF.

    They come from the file's header if it is here: models/base/model.gguf, or the user's own if no level is
    made from it. Otherwise they are computed, from `base.level` or the level in the file's name. Raises
    `ConfigError` if it has none, `DataError` for a damaged file.
    """
    base = params.base
    if base.quantization != "gguf":
        return None
    folder = root / "models" / "base"
    given = own_file(base, root)
    if (folder / MODEL_FILE).is_file() and is_here(base, root):
        original = (folder / SOURCE_FILE).stat().st_size if (folder / SOURCE_FILE).is_file() else 0
        return replace(quantized_file(folder / MODEL_FILE), made_from=original)
    if base.level is None:
        return quantized_file(given) if given else quantized_level(shape, level_of(base.file or base.model))
    original = given.stat().st_size if given else level_bytes(shape, level_of(base.file or base.model))
    return replace(quantized_level(shape, base.level), made_from=original)


def own_file(base: Base, root: Path) -> Path | None:
    """Return the user's own GGUF, if `base` names one that exists."""
    file = root / expanded(base.model, "base.model")
    return file if base.source == "gguf" and file.is_file() else None


def is_here(base: Base, root: Path) -> bool:
    """Return True if models/base contains this base. Raises `DataError` if its record is damaged."""
    record = root / "models" / "base.json"
    if not (record.is_file() and (root / "models" / "base" / "config.json").is_file()):
        return False
    try:
        facts: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        same = (facts["model"], facts["revision"]) == (base.model, base.revision)
        # Older records don't contain these.
        return same and all(
            facts.get(key, getattr(base, key)) == getattr(base, key)
            for key in ("file", "level", "sha256", "tie")
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            "Q-PLANNING-002", f"{record} is not what stage base wrote: run `snakemake --force base`"
        ) from error
