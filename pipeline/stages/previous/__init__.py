"""The adapter, or the scales, that training goes on from."""
