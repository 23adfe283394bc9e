"""Make a level of a 16-bit GGUF whose scales learned the answers of that file, in a sub-project.

The scales of the level's blocks train (`train.tuner: scales`). They learn the 16-bit file's own probabilities
(`train.method: distill`) on training rows and the chats of `data/distill`. Nothing else of the level changes.
"""

from dataclasses import dataclass
from pathlib import Path

from pipeline.config.methods import TEACHER_TOP_K
from pipeline.config.params import Params
from pipeline.config.sections import LEVELS_ALONE, TUNED, Train
from pipeline.config.sections.base import keys_of_file
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hardware import Card
from pipeline.core.hashing import file_hash
from pipeline.core.places import scratch
from pipeline.core.publish import write_json
from pipeline.core.units import disk_gb, memory_gb
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.file import check_gguf
from pipeline.gguf.tensors import SCALES
from pipeline.planning.memory.parts import TEACHER_ROOM
from pipeline.planning.model.gguf_base import quantized_level
from pipeline.planning.model.shape import TENSORS, Shape
from pipeline.planning.plan import make_plan, own_bytes
from pipeline.planning.setup import setup_of
from pipeline.subprojects.distill_rows import curated, first_of, learnable, shuffled, write_drawn, write_lines
from pipeline.subprojects.processes import Settings, changed_params, open_subproject, run_stage, train

# Keys that a sub-project's training copies from section train: how this machine trains, not what is trained.
OF_THE_MACHINE = ("bnb_4bit_compute_dtype", "gradient_checkpointing", "loss", "optim")
FOLDER = scratch("distill")
CURATED = "data-distill"  # folder in it: the chats of data/distill, for all jobs
ROWS = "reports/rows.json"  # file in a sub-project: the rows that it learned from
BYTES_PER_TOKEN = 5  # bytes of text, more than tokenizers pack: rather a row too many than too few
LEARNING_RATE = 2.0e-3  # the peak, for scales; the best values are between 1e-3 and 5e-3
# share of the text that is drawn from data/distill, if there is any; the rest are training rows
GENERAL_SHARE = 0.75
WATCHED = 16  # most held-out rows of preprocess.max_length tokens whose loss is measured


def distilled_gguf(
    project: Path, params: Params, source: Path, level: str, data: Path, *, seed: int | None = None
) -> Path:
    """Make the GGUF `source` (16 bit) at `level` with distilled scales, in the folder `project` (absolute).
    Return its path there.

    `data` is a project's folder of that name: its rows and its chats for distilling are learned from. `seed`
    is `train.seed` if it is left out. The files `models/base/model.gguf` (the level as llama-quantize made
    it), `models/adapter/` (the scales), `reports/train.json` and `reports/rows.json` (the rows that were
    learned from) are kept with the result. A killed run resumes from its checkpoint. Raises the error of a
    failed stage.
    """
    distill_scales(project, params, source, level, data, seed=seed)
    run_stage(project, "tuned")
    return project / f"models/gguf/{params.convert.name}-{TUNED}.gguf"


def distill_scales(
    project: Path,
    params: Params,
    source: Path,
    level: str,
    data: Path,
    *,
    seed: int | None = None,
    original: Path | None = None,
) -> None:
    """Train the scales of `distilled_gguf` without writing the file: they are in `models/adapter/` of
    `project`. Raises `DataError` before it trains if the level is not the file `original`.
    """
    final = data / "final"
    for path in (source, final / "train.jsonl", final / "val.jsonl"):
        if not path.is_file():
            raise DataError("Q-DISTILL-001", f"{path} is missing: run `snakemake`, which makes it")
    changes = settings(params, source, level, seed)
    values = changed_params(params, changes)
    open_subproject(project, values, {})
    run_stage(project, "base")
    if original:
        check_same(project / "models/base" / MODEL_FILE, original)
    rows_of(project, params, data, changes["train"]["seed"])
    values["train"]["target_modules"] = targets(project / "models/base" / MODEL_FILE)
    open_subproject(project, values, {})
    run_stage(project, "preprocess")
    train(project, "--processes", "1")  # Its steps have one micro-batch.


def rows_of(project: Path, params: Params, data: Path, seed: int) -> None:
    """Write the rows that the sub-project learns from and is watched with, and the account of them."""
    apart = data.parent.resolve() / FOLDER / CURATED
    base = project / "models/base"
    general = curated(apart, base, params, data)
    rows = project / "data/final"
    row_bytes = params.preprocess.max_length * BYTES_PER_TOKEN
    size = params.distill.max_steps * row_bytes
    final = data / "final"
    account = write_drawn(final, general, GENERAL_SHARE, rows / "train.jsonl", size, seed)
    val = learnable(final / "val.jsonl", rows / "val-wanted.jsonl")
    watched, _ = first_of(shuffled(val, seed), WATCHED * row_bytes)
    write_lines(rows / "val.jsonl", (val, watched))
    write_json(project / ROWS, account)


def check_same(level: Path, original: Path) -> None:
    """Raise `DataError` if the sub-project's `level` is another file than `original`, the project's own."""
    if file_hash(level) != file_hash(original):
        raise DataError(
            "Q-DISTILL-003",
            f"{original.name} is not the file that its 16-bit GGUF gives at this level now, as another build "
            f"of llama.cpp may make it: run `snakemake --force models/gguf/{original.name}`",
        )


def targets(level: Path) -> list[str]:
    """Return the names of the linears that have scales to train in every layer of the file; the others stay
    as they are. Raises `ConfigError` if there are none.
    """
    types: dict[str, set[int]] = {name: set() for name in TENSORS}
    for tensor, (_, ggml_type) in check_gguf(level).tensors.items():
        for name, part in TENSORS.items():
            if tensor.startswith("blk.") and tensor.endswith(f".{part}.weight"):
                types[name].add(ggml_type)
    names = [name for name, its in types.items() if its and its <= SCALES.keys()]
    if not names:
        raise ConfigError(
            "Q-DISTILL-005",
            f"no linear of {level} has scales that could train: take a level of Q2_K to Q8_0 or IQ4, and "
            "look at quantize.tensor_types",
        )
    return names


def settings(params: Params, source: Path, level: str, seed: int | None) -> Settings:
    """Return the settings by which the sub-project's `params.yaml` differs from the project's."""
    values = params.train.model_dump(mode="json")
    learned = {
        "method": "distill",
        "tuner": "scales",
        "max_steps": params.distill.max_steps,
        "learning_rate": LEARNING_RATE,
        "weight_decay": 0.0,
        "gradient_accumulation_steps": 1,
        "save_steps": max(1, params.distill.max_steps // 10),
        "eval_steps": params.distill.max_steps,
        "sample_rows": 0,
        "seed": params.train.seed if seed is None else seed,
        "offload": params.train.offloaded_layers or "none",  # One process trains a GGUF here.
        **{key: values[key] for key in OF_THE_MACHINE},
    }
    return {
        "base": keys_of_file(source) | {"level": level},
        "augment": {"kinds": []},
        "train": Train().model_dump(mode="json") | learned,
        "quantize": {**LEVELS_ALONE},
        "compare": {"seeds": []},
        "evaluate": {"models": [TUNED]},
    }


# ---- memory and disk


@dataclass(frozen=True)
class DistillPlan:
    """Needs of distilling one level: `memory` of the training and `disk` until it is done, in bytes.

    The 16-bit model answers before the training, on the GPU if it has `teacher_memory` bytes free, otherwise
    on the CPU (`teacher_on_cpu`). `fits` is None if the card's memory is not known.
    """

    level: str
    memory: int
    fits: bool | None
    remedy: str
    steps: int
    tokens: int  # most tokens of a step
    disk: int
    teacher_memory: int
    teacher_on_cpu: bool

    def __str__(self) -> str:
        fits = {None: "", True: ", which fits", False: f", which does not fit: {self.remedy}"}[self.fits]
        where = " (on the CPU, which takes long: it doesn't fit the GPU)" if self.teacher_on_cpu else ""
        return (
            f"Distilling {self.level}: {memory_gb(self.memory)}{fits}. {self.steps:,} steps of at most "
            f"{self.tokens:,} tokens, all of which the 16-bit model answers before{where}; "
            f"{disk_gb(self.disk)} of disk until it is done."
        )


def plan_distillation(params: Params, shape: Shape, level: str, card: Card | None) -> DistillPlan:
    """Return the plan for one level of `quantize.distill` on `card`."""
    changes = settings(params, Path("F16.gguf"), level, None)
    distilling = Params.model_validate(changed_params(params, changes))
    base = quantized_level(shape, level)
    length = params.preprocess.max_length
    plan = make_plan(setup_of(distilling, shape, card, base))
    # 6 bytes a kept token and 2 for the rest (pipeline/stages/train/distill/cache.py).
    answers = (distilling.train.max_steps + WATCHED) * length * (6 * TEACHER_TOP_K + 2)
    sixteen = 2 * shape.parameters
    teacher = int(TEACHER_ROOM * sixteen)
    return DistillPlan(
        level,
        plan.memory.total,
        plan.fits,
        plan.remedy,
        distilling.train.max_steps,
        length,
        sixteen + base.file + own_bytes(plan.disk) + answers,
        teacher,
        card is not None and card.device == "cuda" and teacher > card.memory,
    )
