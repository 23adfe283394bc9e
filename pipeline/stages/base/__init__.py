"""The base model: from a hub, a folder, a GGUF or a package to one checked folder."""
