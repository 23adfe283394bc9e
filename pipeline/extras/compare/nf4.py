"""Train on the NF4 base with one seed of `compare.seeds`.

Reads `models/base/`, `models/base.json`, `data/tokens/` and the held-out rows `data/final/test.jsonl` (to
refuse a project of texts). Writes `models/compare/nf4-SEED/`: the adapter and its train.json.
Command: `python -m pipeline compare_nf4@42`
"""

from pathlib import Path

from pipeline.config.params import Params
from pipeline.extras.compare.projects import TRAINED, base_links, open_project, train


def main(params: Params, root: Path, item: str) -> None:
    """Run the job for the seed `item` on the files below `root`."""
    name = f"nf4-{item}"
    links = base_links(root) | {"data/tokens": root / "data/tokens"}
    train(open_project(root, name, params, {"train": {"seed": int(item)}}, links), root / TRAINED / name)
