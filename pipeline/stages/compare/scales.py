"""Train the scales of the base's own GGUF at one level of `compare.levels` with one seed of `compare.seeds`.

Reads `models/gguf/NAME-base-F16.gguf`, from which the level is made, and `data/final/`, for the level's own
tokenizer. Writes `models/compare/scales_level-LEVEL-SEED/`: what makes the tuned GGUF of the level
(`patch.safetensors`), how it was trained (`run.json`) and its train.json. Command: `python -m pipeline
compare_scales@scales_level-Q4_0-42`
"""

from pathlib import Path

from pipeline.config.params import Params
from pipeline.core.publish import read_json, remove
from pipeline.llamacpp.tools import find_toolchain
from pipeline.stages.compare.projects import (
    TRAINED,
    level_settings,
    open_project,
    publish_scales,
    quantize_base,
    scale_settings,
    train_scales,
)


def main(params: Params, root: Path, item: str) -> None:
    """Run the job for the strategy, level and seed `item` on the files below `root`."""
    _, level, seed = item.split("-")
    settings = scale_settings(params, level_settings(root, item, int(seed)))
    project = open_project(root, item, params, settings, {"data/final": root / "data/final"})
    file = quantize_base(root, params, project, level, find_toolchain(params.machine.llama_cpp))
    tuned = train_scales(project, params)
    report = read_json(project / "reports/train.json", "run `snakemake`")
    publish_scales(file, tuned, project / "models/adapter", report, root / TRAINED / item)
    remove(project)
