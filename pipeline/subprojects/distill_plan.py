"""What distilling the levels of `quantize.distill` will need."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.config.params import Params
from pipeline.core.units import disk_gb, memory_gb
from pipeline.planning.card import Card
from pipeline.planning.disk import own_bytes
from pipeline.planning.plan import make_plan
from pipeline.planning.quantized import quantized_level
from pipeline.planning.shape import Shape
from pipeline.subprojects.distill import WATCHED, settings
from pipeline.subprojects.folder import changed_params


def distill_sentences(params: Params, shape: Shape, card: Card | None) -> Iterator[str]:
    """A sentence for each level: memory, whether it fits, steps, and the disk that is taken meanwhile."""
    for level in params.quantize.distill:
        own = Params.model_validate(changed_params(params, settings(params, Path("F16.gguf"), level, None)))
        base, length = quantized_level(shape, level), params.preprocess.max_length
        training = own.training_on(card.device if card else "cuda")
        plan = make_plan(shape, training, length, [], card, quantized=base, level=level)
        # 6 bytes a kept token and 2 for the rest (pipeline/stages/train/distill/cache.py)
        answers = (own.train.max_steps + WATCHED) * length * (6 * own.train.distill_top_k + 2)
        scratch = 2 * shape.parameters + base.file + own_bytes(plan.disk) + answers
        fits = "" if plan.fits is None else ", which fits" if plan.fits else ", which does not fit"
        yield (
            f"Distilling {level}: {memory_gb(plan.memory.total)}{fits}, for {own.train.max_steps:,} steps of "
            f"at most {length:,} tokens, all of which the 16-bit model answers before; {disk_gb(scratch)} of "
            "disk until it is done."
        )
