"""Linears that keep a GGUF's packed bytes: dequantised at every use, forward and backward."""

# in models/base, where that is a GGUF: what is trained on and served, and the file that it was quantised from where base.level says so
MODEL_FILE, SOURCE_FILE = "model.gguf", "source.gguf"
DENSE = ("llama", "qwen2", "qwen3")  # of the architectures that llama.cpp's names are known of, those without experts: what can be trained packed
