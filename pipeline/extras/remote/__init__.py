"""`quench remote …`: stage train on another machine, by SSH."""
