"""Raw rows to clean, deduplicated, split rows, with statistics of every row."""
