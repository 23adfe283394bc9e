"""The verbs of `quench` that are no stages."""
