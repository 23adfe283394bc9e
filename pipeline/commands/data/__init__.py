"""`quench data …`: look at rows before, in and between the versions of `data/final`."""
