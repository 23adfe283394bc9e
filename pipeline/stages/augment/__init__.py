"""Additional training rows written by a model, each with the row that it comes from."""
