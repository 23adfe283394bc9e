"""What each stage takes: peak memory of its largest process, and disk of what it writes."""

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


def plan_stage(stage: str, params: Params, root: Path) -> Figures:
    """What `stage` ("quantize@Q4_K_M") is planned to take; `UNKNOWN` where the base's shape isn't known, or
    nothing is planned of it.
    """
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
    return figures(stage, plan, params)


def figures(stage: str, plan: Plan, params: Params) -> Figures:
    """The same of a plan that was made."""
    name, _, item = stage.partition("@")
    if name == "train":
        peak = plan.memory.total if plan.memory.device == "cpu" else None  # seen is main memory
        return Figures(peak, plan.seconds, plan.disk["adapter"])
    disk = {
        "merge": ("merged model",),
        "quantize": (f"{item} GGUF",),
        "convert": (*(f"{one} GGUF" for one in ("F16", "base-F16")), "LoRA GGUF"),
        "base": (BASE,),
    }
    sizes = [plan.disk[one] for one in disk.get(name, ()) if one in plan.disk]
    return Figures(None, None, sum(sizes) if sizes else None)
