"""Nemotron-H, a hybrid of attention and state spaces."""

from pipeline.gguf import state_spaces
from pipeline.gguf.families.base import Config, Family


class NemotronH(Family):
    """Nemotron-H."""

    def stored_shape(self, name: str, shape: tuple[int, ...], config: Config) -> tuple[int, ...]:
        """Return the shape in the GGUF, which is another for some tensors of a state space."""
        return state_spaces.stored_shape(name, shape, config, groups="n_groups")


NEMOTRON_H = NemotronH(
    "nemotron_h",
    ("NemotronHForCausalLM",),
    settings={
        "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
        "conv_kernel": "ssm.conv_kernel",
        "ssm_state_size": "ssm.state_size",
        "n_groups": "ssm.group_count",
        "mamba_num_heads": "ssm.time_step_rank",
    },
    own_vocabulary=True,
    # The converter orders the rows all the same, though nothing is rotated.
    turns_neighbors=True,
)
