"""Levels made to measure: the type of every tensor is chosen so that the file has at most a given size."""
