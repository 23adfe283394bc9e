"""The base's GGUF with the trained scales."""
