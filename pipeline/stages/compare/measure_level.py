"""Measure an adapter on the level that it was trained on, for one level and seed.

Reads `models/compare/lora_level-LEVEL-SEED/`, and else what `pipeline.stages.compare.measure` reads;
writes what it writes. Command: `python -m pipeline compare_measure_level@lora_level-Q4_0-42`
"""

from pathlib import Path

from pipeline.config.params import Params
from pipeline.stages.compare.made import make_on_level
from pipeline.stages.compare.measure import record_item


def main(params: Params, root: Path, item: str) -> None:
    """Run the job for the strategy, level and seed `item` on the files below `root`."""
    record_item(params, root, item, make_on_level)
