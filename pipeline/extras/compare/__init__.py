"""The strategies to ship, measured against each other on the user's data."""
