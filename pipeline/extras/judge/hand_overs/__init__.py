"""Comparison of base, adapter, merged folder and GGUFs of any tool: each hand-over with the one before."""
