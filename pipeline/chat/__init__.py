"""Rows as the model sees them: canonical rows, templates, token ids."""
