"""Rows against each other: duplicates, contamination, balance, splits."""
