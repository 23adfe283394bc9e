"""Shapes in which llama.cpp's converter stores the tensors of state spaces (Mamba 2)."""

from collections.abc import Mapping
from typing import Any

from pipeline.gguf.safetensors_rows import Entry

# A state space is called `mixer` in a Nemotron-H.
COLUMNS = (".mamba.A_log", ".mamba.D", ".mixer.A_log", ".mixer.D")
NORM = (".mamba.norm.weight", ".mixer.norm.weight")


def stored_shape(entry: Entry, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return a tensor's shape in the GGUF, which differs from its own for some tensors of a state space."""
    if entry.name.endswith(COLUMNS):
        return (*entry.shape, 1)
    if entry.name.endswith(NORM):
        groups = config["mamba_n_groups" if "mamba_n_groups" in config else "n_groups"]
        return (groups, entry.shape[0] // groups)
    return entry.shape
