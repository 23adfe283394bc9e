"""What is looked at row by row: cleaning, redaction, control tokens, the token budget."""
