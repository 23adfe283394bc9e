"""The shape of the model that a config.json describes: of a Qwen, Llama or Mistral by its numbers, of any
other by building it without weights.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError, DataError
from pipeline.models.experts.recognize import check_experts
from pipeline.planning.shape import KNOWN, Shape, known_shape


def read_shape(config: Mapping[str, Any], where: str = "config.json", *, build: bool = True) -> Shape:
    """Return the shape of a model of this config.json: of the types `KNOWN` by its numbers, of others, if
    `build` is set, as transformers builds them, which imports PyTorch and takes seconds.

    Raises `ConfigError` for a model that is not built, `DataError` for a mixture of experts that can't be
    trained and for a number that is missing or can't be.
    """
    kind = config.get("model_type")
    if kind in KNOWN:
        return known_shape(config, where)
    check_experts(config, where)
    if not build:
        raise ConfigError(
            "Q-PLANNING-005",
            f"{where} is of a {kind!r} model, of which these numbers make no plan: run `snakemake base` "
            "first, or name the model's config.json with --config",
        )
    from pipeline.planning.built import built_shape

    return built_shape(config, where)


def load_shape(path: Path, *, build: bool = True) -> Shape:
    """`read_shape` of a file; `DataError` where it can't be read."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))  # NaN, Infinity: not ours to refuse
    except OSError as error:
        raise DataError(
            "Q-PLANNING-006",
            f"{path} can't be read ({error.strerror}): run `snakemake base`, or name a config.json with "
            "--config",
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            "Q-PLANNING-006",
            f"{path} is not valid JSON ({error}): take the file that the model was published with",
        ) from error
    if not isinstance(config, dict):
        raise DataError(
            "Q-PLANNING-006", f"{path} is not a JSON object: take the file that the model was published with"
        )
    return read_shape(config, str(path), build=build)
