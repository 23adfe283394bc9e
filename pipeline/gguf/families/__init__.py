"""Families of models with a known GGUF, a file each. `base` says what is in one, `registry` lists them."""
