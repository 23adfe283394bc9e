"""What compares rows with each other: duplicates, leaks, triggers, splits, balance."""
