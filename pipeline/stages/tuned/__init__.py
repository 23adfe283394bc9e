"""The base's GGUF with trained scales."""
