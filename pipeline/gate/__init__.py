"""The gate: the rules for shipping, the recommendation, and the records they read."""
