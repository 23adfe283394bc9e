"""Parity checks of every hand-over: text, tokens, weights, outputs."""
