"""The state of a project: settings, hashes, DVC's record of them, and the dates that Snakemake reads."""
