"""Which settings several processes can train."""

from pipeline.config.sections import Training
from pipeline.core.errors import ConfigError


def check_shared(settings: Training, count: int) -> None:
    """Raise `ConfigError` for what `count` processes can't share."""
    if count == 1:
        if settings.shard_base:
            raise ConfigError(
                "Q-TRAIN-040",
                "train.shard_base shares the base's weights out among processes, and this is one alone: "
                "start several (--processes, or QUENCH_PROCESSES in the environment), or set it to false",
            )
        return
    if settings.method == "grpo":
        raise ConfigError(
            "Q-TRAIN-040",
            f"train.method grpo draws its rollouts in one process, and here are {count}: train without "
            "torchrun, srun, --processes and QUENCH_PROCESSES",
        )
    if settings.gradient_accumulation_steps < count:
        raise ConfigError(
            "Q-TRAIN-040",
            f"an optimizer step has {settings.gradient_accumulation_steps} micro-batches "
            f"(train.gradient_accumulation_steps), too few for {count} processes: raise it, or start fewer "
            "(--processes, or QUENCH_PROCESSES in the environment)",
        )
