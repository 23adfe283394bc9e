"""Qwen2 and Qwen3, dense and mixtures of experts."""

from pipeline.gguf.families.base import Family

QWEN2 = Family("qwen2", ("Qwen2ForCausalLM",), trained_on=True)
QWEN3 = Family("qwen3", ("Qwen3ForCausalLM",), trained_on=True)
QWEN2MOE = Family("qwen2moe", ("Qwen2MoeForCausalLM",), trained_on=True, experts=True)
QWEN3MOE = Family("qwen3moe", ("Qwen3MoeForCausalLM",), trained_on=True, experts=True)
