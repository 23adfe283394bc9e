"""`params.yaml`: its sections, their checks, the names of levels."""
