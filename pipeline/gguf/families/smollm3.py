"""SmolLM3."""

from pipeline.gguf.families.base import Family

SMOLLM3 = Family(
    "smollm3", ("SmolLM3ForCausalLM",), trained_on=True, model_type="smollm3", turns_neighbors=True
)
