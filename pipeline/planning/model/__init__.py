"""The model of a plan: its shape and the bytes of its weights, from its config.json, its GGUF or its name.

Only `built` imports torch, for architectures whose shapes the other modules don't know.
"""
