"""`quench run sweep`: find the best settings of training by trials that Optuna chooses and Snakemake runs.

The command (`command`) starts Snakemake on the Snakefile next to it, with one job for each trial. A job
(`job`) gets settings from Optuna, trains in a sub-project and reports the result to Optuna (`study`; its
journal is the only record). Then the best few are trained with other seeds (`verdict`). The result is shown
by `show`.
"""

from pipeline.core.extras import Extra

EXTRA = Extra(page="docs/sweeps.md", provides={"run sweep": "command"}, pip="sweep", imports="optuna")
