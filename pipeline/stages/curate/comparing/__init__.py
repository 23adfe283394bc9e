"""Comparison of rows with each other: duplicates, contamination, balance, splits."""
