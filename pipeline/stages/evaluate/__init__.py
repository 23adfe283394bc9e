"""Evaluation of each model that could be shipped: quality and speed."""
