"""Raw rows to clean, deduplicated, split rows, with an account of every row."""
