"""What stage `curate` is made of: `reading` gives rows, `rules` look at one row, `comparing` at all; here is what joins them, and the account."""
