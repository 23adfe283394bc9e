"""What the jobs that train scales have in common: the settings, the training, and what they publish.

    models/compare/scales_level-Q4_0-42/patch.safetensors    what makes the tuned file of the level
                                       /run.json             how it was trained
                                       /train.json           time, memory, loss

A level with trained scales is as large as the level; its patch is a tenth of that. Measuring makes the level
again and proves by its sha256 that the patch belongs to it.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.config.sections import TUNED, Train
from pipeline.config.targets import LORA_ONLY
from pipeline.core.publish import publishing, write_json
from pipeline.gguf.patch import write_patch
from pipeline.subprojects.processes import Settings, run_stage, train

PATCH = "patch.safetensors"
LEARNING_RATE = 5.0e-3  # the peak, where scales learn the task; what learns best lies between 1e-3 and 1e-2


def scale_settings(params: Params, settings: Settings) -> Settings:
    """`settings` of a sub-project whose base is a level, if the scales of its blocks are to train."""
    own = {
        "tuner": "scales",
        "learning_rate": LEARNING_RATE,
        "weight_decay": 0.0,
        "keep_quantized": True,
        **{name: getattr(Train(), name) for name in LORA_ONLY},
    }
    return settings | {"train": settings["train"] | own, "evaluate": {"models": [TUNED]}}


def train_scales(project: Path, params: Params) -> Path:
    """Train in the sub-project `project`, whose base is a level; the tuned GGUF, made there."""
    run_stage(project, "base")
    run_stage(project, "preprocess")
    train(project)
    run_stage(project, "tuned")
    return tuned_file(project, params)


def tuned_file(project: Path, params: Params) -> Path:
    """The GGUF with trained scales that stage tuned makes in a sub-project."""
    return project / f"models/gguf/{params.convert.name}-{TUNED}.gguf"


def publish_scales(level: Path, tuned: Path, adapter: Path, report: Mapping[str, Any], target: Path) -> None:
    """Publish the folder `target`: what makes the GGUF `tuned` of `level`, the record of the run that ended
    in the folder `adapter`, and the training's report.
    """
    with publishing(target) as aside:
        aside.mkdir()
        write_patch(level, tuned, aside / PATCH)
        shutil.copy(adapter / "run.json", aside)
        write_json(aside / "train.json", dict(report))
