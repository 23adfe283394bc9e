"""Distillation: a level learns to answer like the file it was made from."""
