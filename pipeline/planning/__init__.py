"""What a training run needs, by config.json alone: memory by part, disk, time. Nothing here imports torch."""
