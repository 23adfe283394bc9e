"""ERNIE 4.5, dense."""

from pipeline.gguf.families.base import Family

ERNIE4_5 = Family("ernie4_5", ("Ernie4_5ForCausalLM",))
