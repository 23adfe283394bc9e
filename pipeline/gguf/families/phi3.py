"""Phi-3 and Phi-4, whose rotary positions may be stretched by factors that the file lists."""

from pipeline.gguf.families.base import Config, Factors, Family, Fields, Settings, Untrainable
from pipeline.gguf.header import FIRST_CONTEXT, LONG_FACTORS, SHORT_FACTORS
from pipeline.gguf.windows import WINDOW

ROPE_ATTENTION = "rope.scaling.attn_factor"  # attention factor of rope_type longrope: scales cos and sin


class Phi3(Family):
    """Phi-3."""

    def own_settings(self, values: Fields, settings: Config) -> Settings:
        """Return the context that the model was first trained with."""
        context = values.get(FIRST_CONTEXT, settings["max_position_embeddings"])
        return {"original_max_position_embeddings": context}

    def rope_parameters(self, rope: Settings, values: Fields, factors: Factors) -> Settings:
        """Return `rope_parameters` with the listed factors, if the file has any."""
        listed = {name: factors[name].tolist() for name in (LONG_FACTORS, SHORT_FACTORS) if name in factors}
        attention = values.get(ROPE_ATTENTION, 1.0)
        if not listed and attention == 1.0:
            return rope
        if len(listed) < 2 or FIRST_CONTEXT not in values:
            raise Untrainable("has only some of the settings of rotary positions with listed factors")
        return rope | {
            "rope_type": "longrope",
            "long_factor": listed[LONG_FACTORS],
            "short_factor": listed[SHORT_FACTORS],
            "attention_factor": attention,
            "original_max_position_embeddings": values[FIRST_CONTEXT],
        }


PHI3 = Phi3(
    "phi3",
    ("Phi3ForCausalLM",),
    trained_on=True,
    model_type="phi3",
    # llama.cpp doesn't compute with the window.
    other_fields=(FIRST_CONTEXT, ROPE_ATTENTION, WINDOW),
    partial_rotary=True,
)
