"""What stage `curate` is made of: reading, cleaning, redaction, duplicates, splits, balance and the account."""
