"""Granite 3, and Granite 4 with layers of attention and of state spaces."""

from pipeline.gguf import state_spaces
from pipeline.gguf.families.base import Config, Family

SCALES = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
# attention in layer_types of config.json: as published, and as transformers saves it
ATTENTION = {"attention", "full_attention"}


class GraniteHybrid(Family):
    """Granite 4 without experts. One whose layers are all attention becomes a Granite's GGUF."""

    def of_config(self, config: Config) -> Family | None:
        """Return the family of the model's GGUF; None for experts, whose conversion is not known."""
        if config.get("num_local_experts"):
            return None
        types = config.get("layer_types")  # Without it, no layer is attention.
        return GRANITE if types and ATTENTION.issuperset(types) else self

    def stored_shape(self, name: str, shape: tuple[int, ...], config: Config) -> tuple[int, ...]:
        """Return the shape in the GGUF, which is another for some tensors of a state space."""
        return state_spaces.stored_shape(name, shape, config, groups="mamba_n_groups")


GRANITE = Family(
    "granite",
    ("GraniteForCausalLM",),
    trained_on=True,
    model_type="granite",
    settings=SCALES,
    turns_neighbors=True,
)
GRANITE_HYBRID = GraniteHybrid(
    "granitehybrid",
    ("GraniteMoeHybridForCausalLM",),
    settings=SCALES | state_spaces.SETTINGS,
    turns_neighbors=True,
)
