"""LoRA adapters on the command lines of llama.cpp's tools (common/arg.cpp)."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.core.errors import ConfigError

Lora = tuple[Path, float]  # an adapter's GGUF and the factor that its change is multiplied with


def lora_arguments(lora: Sequence[Lora]) -> list[str]:
    """The adapters as llama.cpp's tools take them: each value is a row of CSV, and with a scale its parts are
    split at every colon.

    Raises `ConfigError` for a scale beside a path with a colon.
    """
    words = []
    for file, scale in lora:
        if scale != 1 and ":" in str(file):
            raise ConfigError(
                "Q-LLAMACPP-011",
                f"{file} has a colon in its path, which llama.cpp can't take beside a scale: rename it, or "
                "leave the scale away",
            )
        value = str(file) if scale == 1 else f"{file}:{scale:.6f}"
        words += [
            "--lora" if scale == 1 else "--lora-scaled",
            '"' + value.replace('"', '""') + '"' if set(value) & set(',"') else value,
        ]
    return words
