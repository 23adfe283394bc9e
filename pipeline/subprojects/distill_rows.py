"""What a distillation learns from: training rows, and the chats of `data/distill`, which are curated like
those of `data/raw` and learned by nothing else.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from pipeline.config.params import Params
from pipeline.config.sections import Curate
from pipeline.core.publish import publishing
from pipeline.subprojects.folder import Settings, changed_params, open_subproject
from pipeline.subprojects.processes import run_stage

# what a user says of single files of data/raw, of its languages and of the splits: not of data/distill
OF_RAW = (
    "formats",
    "languages",
    "source_weights",
    "max_rows_per_source",
    "max_domain_share",
    "val_fraction",
    "test_fraction",
)


class Drawn(TypedDict):
    """How many rows were drawn."""

    train: int
    general: int


def curated(project: Path, params: Params, data: Path) -> Path | None:
    """The rows of `data`/distill, made by stage curate in a sub-project of `project`, whose base it reads;
    None if there are none, or `distill.general_share` is 0.

    Rules, redactions and what is kept out are those of section `curate`. Raises what the stage ended with.
    """
    source = data / "distill"
    if not any(not path.name.startswith(".") for path in source.glob("*")):
        return None
    if not params.distill.general_share:
        print(f"distill: {source} is not used, for distill.general_share is 0", flush=True)
        return None
    apart = project / "data-distill"
    links = {"data/raw": source} | {place: project / place for place in ("models/base", "models/base.json")}
    if (data / "guard").exists():
        links["data/guard"] = data / "guard"
    shutil.rmtree(apart / "data/final", ignore_errors=True)
    open_subproject(apart, changed_params(params, settings()), links)
    run_stage(apart, "curate")
    return apart / "data/final/train.jsonl"


def settings() -> Settings:
    """What the sub-project's `params.yaml` differs in from the project's: every row is for training."""
    defaults = Curate().model_dump(mode="json")
    apart = {key: defaults[key] for key in OF_RAW} | {"val_fraction": 0.0, "test_fraction": 0.0}
    return {"curate": apart}


def draw_rows(source: Path, general: Path | None, share: float, target: Path, size: int, seed: int) -> Drawn:
    """Write `size` bytes of lines, drawn by `seed`, or all if there are fewer, to `target`: the part `share`
    of `general`, the rest of `source`. The original is asked about every row before it is learned from, and
    would be asked about rows that no step gets to.
    """
    from_general, taken = drawn(general, int(share * size), seed) if general else (set[int](), 0)
    from_source, _ = drawn(source, size - taken, seed)
    with publishing(target) as aside, aside.open("wb") as new:
        new.writelines(lines(source, from_source))
        if general:
            new.writelines(lines(general, from_general))
    return {"train": len(from_source), "general": len(from_general)}


def drawn(file: Path, size: int, seed: int) -> tuple[set[int], int]:
    """(the places of lines of `file` that have `size` bytes together, drawn by `seed`; their bytes)."""
    import numpy as np  # `quench plan` does without

    with file.open("rb") as opened:
        lengths = [len(line) for line in opened]
    places, kept, left = list(range(len(lengths))), set[int](), size
    np.random.default_rng(seed).shuffle(places)
    for place in places:
        if left <= 0:
            break
        kept.add(place)
        left -= lengths[place]
    return kept, size - left


def lines(file: Path, places: set[int]) -> Iterator[bytes]:
    """The lines of `file` at `places`."""
    with file.open("rb") as opened:
        yield from (line for place, line in enumerate(opened) if place in places)
