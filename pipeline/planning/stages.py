"""What each stage takes: peak memory of its largest process, and disk of what it writes."""

from collections.abc import Mapping
from pathlib import Path

from pipeline.config.params import Params
from pipeline.core.errors import QuenchError
from pipeline.core.usage import Figures
from pipeline.planning.base import find_quantized, find_shape, level_name
from pipeline.planning.card import first_gpu, main_memory
from pipeline.planning.disk import BASE
from pipeline.planning.duration import work_in
from pipeline.planning.plan import Plan, make_plan

UNKNOWN = Figures(None, None, None)
DISK: Mapping[str, tuple[str, ...]] = {  # what a stage writes, by its names in a plan
    "base": (BASE,),
    "train": ("adapter",),
    "merge": ("merged model",),
    "convert": ("F16 GGUF", "base-F16 GGUF", "LoRA GGUF"),
    "quantize": ("{item} GGUF",),
}


def plan_stage(stage: str, params: Params, root: Path) -> Figures:
    """What `stage` ("quantize@Q4_K_M") is planned to take; `UNKNOWN` where the base's shape isn't known, or
    nothing is planned of it.
    """
    if stage.partition("@")[0] not in DISK:
        return UNKNOWN
    try:
        shape = find_shape(params, root)
        card = (None if params.train.device == "cpu" else first_gpu()) or main_memory()
        plan = make_plan(
            shape,
            params.training_on(card.device),
            params.preprocess.max_length,
            [*params.quantize.files, *params.quantize.untuned],
            card,
            work_in(root, params.train),
            quantized=find_quantized(params, shape, root),
            level=level_name(params.base),
            lora=params.lora.type,
            untuned=params.convert.base,
        )
    except QuenchError:
        return UNKNOWN
    return figures(stage, plan)


def figures(stage: str, plan: Plan) -> Figures:
    """The same of a plan that was made, for a stage of `DISK`."""
    name, _, item = stage.partition("@")
    written = [one.format(item=item) for one in DISK[name]]
    disk = sum(plan.disk[one] for one in written if one in plan.disk) or None
    if name != "train":
        return Figures(None, None, disk)
    # on a GPU what is seen is main memory, and planned the card's
    return Figures(plan.memory.total if plan.memory.device == "cpu" else None, plan.seconds, disk)
