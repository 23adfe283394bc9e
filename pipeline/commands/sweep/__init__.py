"""`quench run sweep`: which settings of training are best, found by trials that Optuna chooses and Snakemake
runs.

The command (`command`) starts Snakemake on the Snakefile beside it, with one job for each trial; a job
(`job`) asks Optuna for settings, trains in a sub-project and reports the result to Optuna (`study`, whose
journal is the only record). Then the best few are trained with other seeds (`verdict`). The result is
shown by `show`.
"""
