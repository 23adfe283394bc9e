"""Distillation: a level whose scales are trained on the 16-bit model's answers."""

from pipeline.core.extras import Extra

EXTRA = Extra(page="docs/methods.md", settings=("quantize.distill",))
