"""Measure a level with distilled scales, for one strategy, level and seed.

Reads `models/compare/STRATEGY-LEVEL-SEED/`, `models/compare/nf4-SEED/` for the merged model, and else what
`pipeline.stages.compare.measure` reads; writes what it writes. Command: `python -m pipeline
compare_measure_distilled@distilled_scales-Q4_0-42`
"""

from functools import partial
from pathlib import Path

from pipeline.config.params import Params
from pipeline.config.strategies import MERGED_DISTILLED
from pipeline.stages.compare.made import make_distilled, make_merged_distilled
from pipeline.stages.compare.measure import record_item


def main(params: Params, root: Path, item: str) -> None:
    """Run the job for the strategy, level and seed `item` on the files below `root`."""
    strategy, _, seed = item.split("-")
    merged = partial(make_merged_distilled, seed=int(seed))
    record_item(params, root, item, merged if strategy == MERGED_DISTILLED else make_distilled)
