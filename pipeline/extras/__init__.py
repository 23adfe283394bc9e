"""Parts that the core does not need. None imports another one, and the core imports none."""
