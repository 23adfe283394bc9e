"""Rules that judge one row at a time."""
