"""The adapter as a GGUF that is loaded together with the base's GGUF."""
