"""AFM by Arcee."""

from pipeline.gguf.families.base import Family

ARCEE = Family("arcee", ("ArceeForCausalLM",), turns_neighbors=True)
