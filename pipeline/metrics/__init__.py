"""Scorers, intervals, paired tests, divergence, the sandbox."""
