"""Linears on NF4 and GGUF blocks, the losses, and the arithmetic of a merge."""
