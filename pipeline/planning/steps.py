"""How many optimizer steps a run takes, and which optimizers need a GPU."""

import math

from pipeline.config.sections import Train


def warmup_steps(settings: Train, rows: int) -> int:
    """`warmup_ratio` of the optimizer steps that `rows` training rows give, rounded up as transformers 4
    did.
    """
    return math.ceil(total_steps(settings, rows) * settings.warmup_ratio)


def total_steps(settings: Train, rows: int) -> int:
    """Optimizer steps of a complete run over `rows` training rows."""
    return (
        settings.max_steps
        if settings.max_steps > 0
        else math.ceil(steps_per_epoch(settings, rows) * settings.num_train_epochs)
    )


def steps_per_epoch(settings: Train, rows: int) -> int:
    """Optimizer steps of one pass over `rows` training rows."""
    return math.ceil(
        math.ceil(rows / settings.per_device_train_batch_size) / settings.gradient_accumulation_steps
    )


def needs_gpu(optim: str) -> bool:
    """Whether an optimizer's states are of a kind that only a GPU has."""
    return "8bit" in optim or "paged" in optim
