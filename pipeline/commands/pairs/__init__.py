"""`quench data pairs`: preferences of the model's own answers."""
