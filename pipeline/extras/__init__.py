"""Parts that the main line does not need. None imports another one, and the core imports none."""
