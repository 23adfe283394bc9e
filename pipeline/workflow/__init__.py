"""Snakemake and DVC: Snakemake executes, DVC records, and this package keeps the two consistent."""
