"""Merging an adapter: files read and written row by row, NF4's round trip, what an adapter does to each tensor, sums rounded once."""
