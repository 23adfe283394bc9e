"""Write the base's own GGUF with the scales that were trained: one file, which is served and shipped.

Reads `models/base/`, `models/base.json`, `models/adapter/`.
Writes `models/gguf/NAME-tuned.gguf`.
Command: `python -m pipeline tuned`
"""

from pathlib import Path

from pipeline.config.params import Params


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`."""
    raise NotImplementedError
