"""The GGUF with the scales that were trained in it."""
