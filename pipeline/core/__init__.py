"""The base layer: errors, publishing, JSON rows, hashes, locks, progress."""
