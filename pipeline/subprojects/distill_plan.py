"""What distilling the levels of `quantize.distill` will need."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.config.params import Params
from pipeline.core.hardware import Card
from pipeline.core.units import disk_gb, memory_gb
from pipeline.planning.memory import TEACHER_ROOM
from pipeline.planning.plan import make_plan, own_bytes
from pipeline.planning.quantized import quantized_level
from pipeline.planning.setup import setup_of
from pipeline.planning.shape import Shape
from pipeline.subprojects.distill import WATCHED, settings
from pipeline.subprojects.processes import changed_params


@dataclass(frozen=True)
class DistillPlan:
    """What distilling one level takes: `memory` of the training and `disk` until it is done, in bytes.

    The 16-bit model answers before the training, on the GPU if it has `teacher_memory` bytes free, else on
    the CPU (`teacher_on_cpu`). `fits` is None where the card's memory is not known.
    """

    level: str
    memory: int
    fits: bool | None
    remedy: str
    steps: int
    tokens: int  # of a step, at most
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
    """The plan for one level of `quantize.distill` on `card`."""
    own = Params.model_validate(changed_params(params, settings(params, Path("F16.gguf"), level, None)))
    base, length = quantized_level(shape, level), params.preprocess.max_length
    plan = make_plan(setup_of(own, shape, card, base))
    # 6 bytes a kept token and 2 for the rest (pipeline/stages/train/distill/cache.py)
    answers = (own.train.max_steps + WATCHED) * length * (6 * own.train.distill_top_k + 2)
    sixteen = 2 * shape.parameters
    teacher = int(TEACHER_ROOM * sixteen)
    return DistillPlan(
        level,
        plan.memory.total,
        plan.fits,
        plan.remedy,
        own.train.max_steps,
        length,
        sixteen + base.file + own_bytes(plan.disk) + answers,
        teacher,
        card is not None and card.device == "cuda" and teacher > card.memory,
    )
