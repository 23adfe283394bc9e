"""EXAONE 4."""

from pipeline.gguf.families.base import Family
from pipeline.gguf.windows import WINDOW

EXAONE4 = Family("exaone4", ("Exaone4ForCausalLM",), settings={"sliding_window": WINDOW})
