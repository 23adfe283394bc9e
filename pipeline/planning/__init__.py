"""What a training run will need, from a config.json alone: memory part by part, disk, time. Nothing here
imports torch.
"""
