"""Llama, Mistral and Mixtral, whose GGUF has one name."""

from pipeline.gguf.families.base import Family

LLAMA = Family(
    "llama",
    ("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"),
    trained_on=True,
    turns_neighbors=True,
)
