"""Measure the reference of all levels, for one seed: trained on NF4, merged into 16 bit, not quantized.

Reads and writes the files of `pipeline.extras.compare.measure`, at the level `convert.type`.
`reports/compare/merged_16-SEED.json` also contains which general questions the untuned base answers right.
Command: `python -m pipeline compare_unquantized@42`
"""

from pathlib import Path

from pipeline.config.params import Params
from pipeline.config.strategies import MERGED_16, Job
from pipeline.extras.compare.made import make_merged
from pipeline.extras.compare.measure import record


def main(params: Params, root: Path, item: str) -> None:
    """Run the job for the seed `item` on the files below `root`."""
    record(params, root, Job(MERGED_16, params.convert.type, int(item), is_reference=True), make_merged)
