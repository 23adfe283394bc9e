"""View of a run: Snakemake's records and the stages' logs, as a live table, as plain lines or as JSON."""

VIEW = "QUENCH_VIEW"  # in a job's environment: QUIET if its output goes into its log only
QUIET = "quiet"
