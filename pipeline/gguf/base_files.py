"""A base that is a GGUF: the names of its files in models/base, and the architectures that can be trained on
one.
"""

# what is trained on and served, and, if base.level is set, the file that it was quantized from
MODEL_FILE, SOURCE_FILE = "model.gguf", "source.gguf"
DENSE = ("llama", "qwen2", "qwen3")  # the architectures of `gguf.sources` without experts
