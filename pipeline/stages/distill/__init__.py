"""A level whose scales are taught the 16-bit model's own answers."""
