"""Types given for single tensors of a level (`quantize.tensor_types`): checked before llama-quantize runs,
and proven after it.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from pipeline.config.ggml_types import TYPES
from pipeline.core.errors import ConfigError
from pipeline.gguf.file import check_gguf
from pipeline.gguf.tensors import gguf_tensors


def check_tensor_types(source: Path, tensor_types: Mapping[str, str], with_imatrix: bool) -> None:
    """Raise `ConfigError` if llama-quantize does not make a type, or a pattern is invalid or in no
    tensor name of `source`.
    """
    names = check_gguf(source).tensors if tensor_types else {}
    for pattern, ggml_type in tensor_types.items():
        key = f"quantize.tensor_types.{pattern}"
        if ggml_type.upper() not in TYPES:
            raise ConfigError(
                "Q-GGUF-010",
                f"{key} is {ggml_type}, which llama-quantize does not make: choose one of "
                f"{', '.join(sorted(TYPES))}",
            )
        if TYPES[ggml_type.upper()].needs_imatrix and not with_imatrix:
            raise ConfigError(
                "Q-GGUF-011",
                f"{key} is {ggml_type}, which needs an importance matrix: append -imatrix to the level's "
                "name",
            )
        if not any(_finds(pattern, name) for name in names):
            raise ConfigError(
                "Q-GGUF-012",
                f"{key} is in no tensor name of {source.name}: correct the pattern (names are like "
                f"{min(names)})",
            )


def prove_tensor_types(level: Path, tensor_types: Mapping[str, str]) -> None:
    """Raise `ConfigError` if a pattern changed nothing in the file `level`: norms and the like are never
    quantized, short rows fall back.
    """
    if not tensor_types:
        return
    left = {name: tensor.type for name, tensor in gguf_tensors(level)[1].items()}
    for pattern, ggml_type in tensor_types.items():
        # as there, the first pattern that matches wins
        matched = {name: left.pop(name) for name in list(left) if _finds(pattern, name)}
        if ggml_type.upper() not in matched.values():
            reason = (
                f"its tensors have {', '.join(sorted(set(matched.values())))}"
                if matched
                else "patterns before it have taken all its tensors"
            )
            raise ConfigError(
                "Q-GGUF-013",
                f"quantize.tensor_types.{pattern} asks for {ggml_type}, but {reason}: llama-quantize can't "
                "give it to them, take the key out",
            )


def _finds(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern.lower(), name) is not None  # llama-quantize lowers patterns too
    except re.error as error:
        raise ConfigError(
            "Q-GGUF-014", f"quantize.tensor_types.{pattern} is not a regular expression ({error}): correct it"
        ) from error
