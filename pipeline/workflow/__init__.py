"""Snakemake executes, DVC remembers: what keeps the two agreed."""
