"""QLoRA training: exact resume, checks before and while it runs."""
