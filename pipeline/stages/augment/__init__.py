"""Rows that a model writes to those of training, each with the row that it comes from."""
