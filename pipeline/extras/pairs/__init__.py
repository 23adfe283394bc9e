"""`quench data pairs`: preference pairs made from the model's own answers."""
