"""`params.yaml`: its sections, their checks, and the names of levels."""
