"""Settings of state spaces (Mamba 2), and the shapes in which llama.cpp's converter stores their tensors."""

from collections.abc import Mapping
from typing import Any

# {key of config.json: field of the header} in models whose keys are called so
SETTINGS = {
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
    "mamba_n_heads": "ssm.time_step_rank",
}
# A state space is called `mixer` in a Nemotron-H.
COLUMNS = (".mamba.A_log", ".mamba.D", ".mixer.A_log", ".mixer.D")
NORM = (".mamba.norm.weight", ".mixer.norm.weight")


def stored_shape(
    name: str, shape: tuple[int, ...], config: Mapping[str, Any], groups: str
) -> tuple[int, ...]:
    """Return a tensor's shape in the GGUF, which differs from its own for some tensors of a state space.

    `groups` is the key of config.json with the number of groups.
    """
    if name.endswith(COLUMNS):
        return (*shape, 1)
    if name.endswith(NORM):
        return (config[groups], shape[0] // config[groups])
    return shape
