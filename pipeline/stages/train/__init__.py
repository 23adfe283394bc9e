"""QLoRA training: exact resume, checks before and during the run."""
