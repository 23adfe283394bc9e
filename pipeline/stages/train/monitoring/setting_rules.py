"""The rules that look at the settings of a run: what is usual for what trains, and for the method."""

from collections.abc import Callable

from pipeline.core.checks import Check
from pipeline.stages.train.monitoring.curves import Run
from pipeline.stages.train.monitoring.findings import Rules, passed, warning


def hint(
    key: str, low: float, high: float, cause: str, scales: tuple[float, float, str] | None = None
) -> Callable[[Run], Check]:
    """A rule for one setting of `train` that is usually between `low` and `high`; `scales` stands for all
    three if the scales of a GGUF's blocks train.
    """

    def rule(run: Run) -> Check:
        value, inside = getattr(run.settings, key), run.settings.tuner == "scales"
        least, most, why = scales if scales and inside else (low, high, cause)
        text = (
            f"train.{key} is {value:g}, usual for {'scales' if inside else 'LoRA'} are {least:g} to {most:g}"
        )
        return passed(text) if least <= value <= most else warning(text, why)

    return rule


PREFERENCE_RATES = (5e-7, 1e-4)
_learning_rate = hint(
    "learning_rate",
    1e-4,
    3e-4,
    "higher learns fast and forgets, lower may not learn: 2.0e-4 is a good start",
    (1e-3, 1e-2, "higher learns fast and forgets, lower may not learn: 5.0e-3 is a good start"),
)


def learning_rate(run: Run) -> Check:
    """The peak learning rate: usual for preferences is a fraction of the usual one."""
    if not run.preferences or run.settings.tuner == "scales":
        return _learning_rate(run)
    (low, high), rate, method = PREFERENCE_RATES, run.settings.learning_rate, run.settings.method
    text = f"train.learning_rate is {rate:g}, usual for {method} are {low:g} to {high:g}"
    if low <= rate <= high:
        return passed(text)
    return warning(text, "a higher one makes the chosen answers less likely too: 2.0e-5 is a good start")


def rank(run: Run) -> Check:
    """The adapter's rank; scales have none."""
    if run.settings.tuner == "scales":
        return passed("scales have no rank")
    return hint("r", 8, 64, "less holds little, more costs memory for nothing: set it to 16")(run)


SETTINGS: Rules = {
    "learning rate": learning_rate,
    "warm-up": hint(
        "warmup_ratio", 0.05, 0.1, "none makes the first steps rough, a long one wastes steps: set it to 0.1"
    ),
    "weight decay": hint(
        "weight_decay", 0.0, 0.1, "more pulls what is learned back to nothing: set it to 0.01"
    ),
    "rank": rank,
}
