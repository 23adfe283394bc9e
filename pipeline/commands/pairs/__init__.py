"""`quench pairs`: preferences of the model's own answers."""
