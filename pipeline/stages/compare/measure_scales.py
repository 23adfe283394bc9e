"""Measure a level whose scales were trained on the task, for one level and seed.

Reads `models/compare/scales_level-LEVEL-SEED/`, and else what `pipeline.stages.compare.measure` reads;
writes what it writes. Command: `python -m pipeline compare_measure_scales@scales_level-Q4_0-42`
"""

from pathlib import Path

from pipeline.config.params import Params
from pipeline.stages.compare.made import make_scaled
from pipeline.stages.compare.measure import record_item


def main(params: Params, root: Path, item: str) -> None:
    """Run the job for the strategy, level and seed `item` on the files below `root`."""
    record_item(params, root, item, make_scaled)
