"""Quantization of the 16-bit GGUF to the levels that ship."""
