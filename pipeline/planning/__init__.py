"""Plan the needs of a training run by its config.json: memory by part, disk, time. Nothing here imports torch
but `built`, for architectures whose shapes the others don't know.
"""
