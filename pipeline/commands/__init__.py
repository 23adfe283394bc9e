"""Verbs of `quench` that are not stages."""
