"""What everything stands on: errors, publishing, rows of JSON, hashes, locks, progress."""
