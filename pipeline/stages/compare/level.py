"""Train on the base's own GGUF at one level of `compare.levels` with one seed of `compare.seeds`.

Reads `models/gguf/NAME-base-F16.gguf`, from which the level is made, and `data/final/`, for the level's own
tokenizer. Writes `models/compare/lora_level-LEVEL-SEED/`: the adapter and its train.json. Command: `python -m
pipeline compare_level@lora_level-Q4_K_M-42`
"""

from pathlib import Path

from pipeline.config.params import Params
from pipeline.core.publish import remove
from pipeline.llamacpp.tools import find_toolchain
from pipeline.stages.compare.projects import (
    TRAINED,
    level_settings,
    open_project,
    quantize_base,
    train,
)
from pipeline.subprojects.processes import run_stage


def main(params: Params, root: Path, item: str) -> None:
    """Run the job for the strategy, level and seed `item` on the files below `root`."""
    _, level, seed = item.split("-")
    settings = level_settings(root, item, int(seed))
    project = open_project(root, item, params, settings, {"data/final": root / "data/final"})
    file = quantize_base(root, params, project, level, find_toolchain(params.machine.llama_cpp))
    run_stage(project, "base")
    remove(file)
    run_stage(project, "preprocess")
    train(project, root / TRAINED / item)
