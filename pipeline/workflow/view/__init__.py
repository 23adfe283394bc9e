"""View of a run: Snakemake's records and the stages' logs, as a live table, as plain lines or as JSON."""
