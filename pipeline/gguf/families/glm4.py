"""GLM-4."""

from pipeline.gguf.families.base import Family

GLM4 = Family("glm4", ("Glm4ForCausalLM",))
