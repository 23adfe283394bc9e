"""Distillation: a level whose scales are trained on the 16-bit model's answers."""
