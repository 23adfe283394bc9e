"""The shape of the model that a config.json describes: for a Qwen, Llama or Mistral from its numbers, for any
other by building it without weights.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import ConfigError, DataError
from pipeline.models.experts.recognize import check_experts
from pipeline.planning.model.shape import KNOWN, Shape, known_shape


def read_shape(config: Mapping[str, Any], where: str = "config.json", *, build: bool = True) -> Shape:
    """Return the shape of a model of this config.json.

    For the types `KNOWN` it follows from its numbers. Others are built by transformers if `build` is set,
    which imports PyTorch and takes seconds. Raises `ConfigError` for a model that is not built, `DataError`
    for a mixture of experts that can't be trained and for a missing or impossible number.
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
    from pipeline.planning.model.built import built_shape

    return built_shape(config, where)


def load_shape(path: Path, *, build: bool = True) -> Shape:
    """Return `read_shape` of a file. Raises `DataError` if it can't be read."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))  # NaN and Infinity are accepted here
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
