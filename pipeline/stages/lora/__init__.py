"""An adapter as a GGUF beside its base's."""
