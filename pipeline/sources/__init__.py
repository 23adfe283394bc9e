"""Where a base model comes from: the hub, a folder, a GGUF; what is refused and how it becomes one Hugging Face folder."""
