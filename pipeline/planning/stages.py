"""The needs of each stage: peak memory of its largest process, time, and disk of what it writes.

A peak is the sum of what the stage has in memory at its fullest moment, mapped files included (the system
reclaims their pages if memory is short). Times are those of `stage_times`. docs/gpu.md shows how far both
were off.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.config.params import Params
from pipeline.config.sections.models import MERGE_ROWS
from pipeline.core.errors import ConfigError, QuenchError
from pipeline.core.hardware import first_gpu, main_memory
from pipeline.core.usage import Figures
from pipeline.planning.machine_rate import keep_rate, measure_rate
from pipeline.planning.model.base import find_shape
from pipeline.planning.model.gguf_base import level_of
from pipeline.planning.model.level_bytes import level_bytes, matrices
from pipeline.planning.plan import BASE, Plan, plan_run
from pipeline.planning.stage_times import SECONDS, slow_disk, times

UNKNOWN = Figures(None, None, None)
WRITTEN: Mapping[str, tuple[str, ...]] = {  # outputs of a stage, by their names in a plan
    "base": (BASE,),
    "train": ("adapter",),
    "merge": ("merged model",),
    "convert": ("F16 GGUF", "base-F16 GGUF", "LoRA GGUF"),
    "quantize": ("{item} GGUF",),
}
# Measured bytes of a process in addition to a model.
LIBRARIES = 860_000_000  # PyTorch, transformers and llama.cpp's binding
CONTEXT = 200_000_000  # llama.cpp's cache and buffers, if logits are compared
EVALUATOR = 1_020_000_000  # transformers' tokenizer, llama.cpp's binding, two contexts
CONVERTER = 390_000_000
QUANTIZER = 100_000_000
# Types that llama.cpp has in memory twice on a CPU with AVX2: as in the file, and laid out for its kernels
# (ggml-cpu/repack.cpp).
REPACKED = ("Q2_K", "Q4_0", "Q4_K", "IQ4_NL", "MXFP4")
# positions of a row, the most that `pipeline.metrics.divergence` compares; that module imports numpy
POSITIONS = 64
LONG = 60.0  # planned seconds of a training, beside which the two of a measurement don't count


def plan_stage(stage: str, params: Params, root: Path) -> Figures:
    """Return the planned figures of `stage` ("quantize@Q4_K_M").

    It is `UNKNOWN` if the base's shape isn't known, or nothing is planned for the stage. For a training that
    `is_worth_measuring` it measures the machine, and keeps its rate.
    """
    if stage.partition("@")[0] not in SECONDS:
        return UNKNOWN
    try:
        # Building an architecture imports PyTorch, which training does anyway and others should not wait for.
        shape = find_shape(params, root, build=stage == "train")
        card = (None if params.train.device == "cpu" else first_gpu()) or main_memory()
        plan = plan_run(params, shape, root, card)
        if stage == "train" and is_worth_measuring(plan):
            keep_rate(measure_rate(root, shape, plan.setup.tokens), root)
            plan = plan_run(params, shape, root, card)
    except QuenchError:
        return UNKNOWN
    return figures(stage, params, plan)


def is_worth_measuring(plan: Plan) -> bool:
    """Return True if a training on this machine's CPU takes minutes, and the machine was not measured yet.

    The stages after it, and the report, know the machine's rate then.
    """
    long = plan.seconds is not None and plan.seconds >= LONG
    return long and plan.rate is None and plan.setup.device == "cpu"


def planned_stages(params: Params, plan: Plan) -> Iterator[tuple[str, Figures]]:
    """Yield (stage, its planned figures) of the stages that are planned, in the order in which they run."""
    merged = params.graph == "merged"
    quantized = [f"quantize@{level}" for level in (*params.quantize.files, *params.quantize.untuned)]
    stages_of_merge = ["merge", "convert", *quantized, "parity"] if merged else []
    measured = [f"evaluate@{model}" for model in params.evaluate.models] if merged else []
    for stage in ("base", "train", *stages_of_merge, *measured):
        yield stage, figures(stage, params, plan)


def figures(stage: str, params: Params, plan: Plan) -> Figures:
    """Return the figures of a stage of `SECONDS` by a plan that was made."""
    name, _, item = stage.partition("@")
    written = [pattern.format(item=item) for pattern in WRITTEN.get(name, ())]
    disk = sum(plan.disk[name] for name in written if name in plan.disk) or None
    if params.graph != "merged" and name != "train":  # Other stages were not measured.
        return Figures(None, None, disk)
    took = times(name, item, params, plan)
    seconds = None if took.seconds is None else took.seconds + slow_disk(disk, plan)
    return Figures(peak(name, item, params, plan), seconds, disk, took.products)


def peak(name: str, item: str, params: Params, plan: Plan) -> int | None:
    """Return the bytes of main memory that the stage's largest process has at most.

    Return None if it was not measured: training and evaluation on a GPU, a base that isn't unpacked, a merge
    that measures nothing.
    """
    shape = plan.setup.shape
    on_cpu = plan.setup.device == "cpu"
    weights = 2 * shape.parameters  # 16 bit
    table = 4 * shape.table_weights  # the embeddings in float32
    row = POSITIONS * 4 * shape.vocabulary  # the logits of a row in float32
    match name:
        case "train" if on_cpu:
            return plan.memory.peak
        case "base" if params.base.gguf_name:  # fully unpacked, and it has a head of its own
            try:
                file = level_bytes(shape, level_of(params.base.gguf_name))
            except ConfigError:  # The name contains no level.
                return None
            return LIBRARIES + weights + (table // 2 if shape.tied else 0) + file
        case "merge" if params.merge.base == "auto":  # the merged model's F16, and logits of the trained one
            return LIBRARIES + CONTEXT + weights + MERGE_ROWS * row
        # float16 is copied; a published folder is in bfloat16, and is converted by way of float32.
        case "convert":
            return CONVERTER + table // 2 + (0 if params.base.gguf_name else table)
        case "quantize":  # a matrix in its own type, in float32 and quantized
            return QUANTIZER + table // 2 + table + table // 5
        case "parity":  # a model in PyTorch with a matrix in float32, or a GGUF and six models' logits
            return LIBRARIES + CONTEXT + weights + max(table, 6 * params.parity.rows * row)
        case "evaluate" if on_cpu and (size := plan.disk.get(f"{item} GGUF")):
            # The 16-bit file, with which it is compared, is in memory too.
            repacked = sum(bytes for _, kind, bytes in matrices(shape, item) if kind in REPACKED)
            return EVALUATOR + size + repacked + weights
    return None
