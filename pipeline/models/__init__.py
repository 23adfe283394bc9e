"""Linears on NF4 and GGUF blocks, the losses, and what a merge computes."""
