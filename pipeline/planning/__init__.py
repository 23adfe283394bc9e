"""Plans of a training run from its config.json: memory by part, disk, time.

Only `model.built` imports torch, for architectures whose shapes the other modules don't know.
"""
