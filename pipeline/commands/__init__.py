"""The verbs of `quench` that are not stages."""
