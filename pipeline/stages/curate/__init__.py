"""Stage curate: raw rows become clean, deduplicated, split rows, with statistics of every row."""
