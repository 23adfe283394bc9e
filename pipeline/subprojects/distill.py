"""A level of a 16-bit GGUF whose scales learned the answers of that file, made in a sub-project.

What trains are the scales of the level's blocks (`train.tuner: scales`); what they learn are the 16-bit
file's own probabilities on the training rows (`train.method: distill`). Nothing else of the level changes.
"""

from pathlib import Path

from pipeline.config.params import Params
from pipeline.config.sections import TUNED, Train
from pipeline.core.errors import DataError
from pipeline.subprojects.folder import Settings, changed_params, open_subproject
from pipeline.subprojects.processes import run_stage
from pipeline.subprojects.training import train

# what a sub-project's training takes from section train: how this machine trains, not what is trained
OF_THE_MACHINE = ("bnb_4bit_compute_dtype", "distill_top_k", "gradient_checkpointing", "loss", "optim")


def distilled_gguf(
    project: Path, params: Params, source: Path, level: str, data: Path, *, seed: int | None = None
) -> Path:
    """The GGUF `source` (16 bit) at `level` with distilled scales, made in the folder `project` (absolute);
    its path there.

    `data` holds train.jsonl, whose rows are learned from, and val.jsonl. `seed` is `train.seed` if it is left
    out. Beside the result stay `models/base/model.gguf` (the level as llama-quantize made it),
    `models/adapter/` (the scales) and `reports/train.json`. A killed run goes on from its checkpoint. Raises
    what a stage ended with.
    """
    distill_scales(project, params, source, level, data, seed=seed)
    run_stage(project, "tuned")
    return project / f"models/gguf/{params.convert.name}-{TUNED}.gguf"


def distill_scales(
    project: Path, params: Params, source: Path, level: str, data: Path, *, seed: int | None = None
) -> None:
    """`distilled_gguf` without the file: the trained scales are in `models/adapter/` of `project`."""
    for path in (source, data / "train.jsonl", data / "val.jsonl"):
        if not path.is_file():
            raise DataError("Q-DISTILL-001", f"{path} is missing: run `snakemake`, which makes it")
    values = changed_params(params, settings(params, source, level, seed))
    open_subproject(project, values, {"data/final": data})
    run_stage(project, "base")
    run_stage(project, "preprocess")
    train(project)


def settings(params: Params, source: Path, level: str, seed: int | None) -> Settings:
    """What the sub-project's `params.yaml` differs in from the project's."""
    own = params.train.model_dump(mode="json")
    learned = {
        "method": "distill",
        "tuner": "scales",
        "max_steps": params.distill.max_steps,
        "learning_rate": params.distill.learning_rate,
        "gradient_accumulation_steps": 1,
        "save_steps": max(1, params.distill.max_steps // 10),
        "eval_steps": params.distill.max_steps,
        "sample_rows": 0,
        "seed": params.train.seed if seed is None else seed,
        **{key: own[key] for key in OF_THE_MACHINE},
    }
    return {
        "base": {
            "source": "gguf",
            "model": str(source.resolve()),
            "revision": None,
            "file": None,
            "quantization": "gguf",
            "level": level,
            "compare_with": None,
        },
        "train": Train().model_dump(mode="json") | learned,
        "compare": {"seeds": []},
        "evaluate": {"models": [TUNED]},
    }
