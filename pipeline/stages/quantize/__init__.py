"""The levels to ship."""
