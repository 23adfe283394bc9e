"""The rules that look at settings, evaluations and the entire run; those for every step are in `rules`."""

import math
from collections.abc import Callable

from pipeline.config.sections import Train
from pipeline.core.checks import Check
from pipeline.stages.train.monitoring.monitor import (
    USUAL_LOSS,
    WINDOW,
    Rules,
    Run,
    failure,
    median,
    passed,
    unknown,
    warning,
)

PREFERENCE_RATES = (5e-7, 1e-4)
FALLEN = 0.98  # a loss that is not at least 2 % lower has not fallen
RISEN = 1.02
FEW = 4  # steps at the very start that are also taken as its start


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


def finite_eval_loss(run: Run) -> Check:
    """NaN or Inf on the held-out rows."""
    loss = run.evaluations[-1][1]
    if math.isfinite(loss):
        return passed(f"a number in all {len(run.evaluations)} evaluations")
    return failure(
        f"the loss on the held-out rows is {loss}",
        "a forward fault: lower train.learning_rate, or use bfloat16 as train.bnb_4bit_compute_dtype",
        "Q-TRAIN-009",
    )


def overfitting(run: Run) -> Check:
    """The eval loss 2 % above its lowest twice in a row while the training loss is lower than it was then."""
    if len(run.evaluations) < 2:
        return unknown("fewer than two evaluations")
    best_step, best, trained_then = min(run.evaluations, key=lambda row: row[1])
    step, loss, trained = run.evaluations[-1]
    rising = all(row[1] > best * RISEN and row[0] > best_step for row in run.evaluations[-2:])
    if not (rising and trained < trained_then):
        return passed(f"eval loss {loss:.3g} at step {step}, lowest {best:.3g} at step {best_step}")
    text = (
        f"eval loss up from {best:.3g} at step {best_step} to {loss:.3g}, training loss down from "
        f"{trained_then:.3g} to {trained:.3g}"
    )
    return warning(
        text,
        "overfitting: fewer passes (train.num_train_epochs), more rows, or train.early_stopping_patience",
    )


def falling(run: Run) -> Check:
    """The last fifth's loss against the first's, or the first steps': easy tasks are learned early."""
    fifth = len(run.losses) // 5
    if fifth < FEW:
        return unknown(f"{len(run.losses)} steps are too few to tell")
    first, last = max(median(run.losses[:FEW]), median(run.losses[:fifth])), median(run.losses[-fifth:])
    text = f"from {first:.3g} to {last:.3g} (medians of the first and the last steps)"
    if last < first * FALLEN:
        return passed(text)
    cause = (
        "nothing is recovered: raise train.r, train.learning_rate or the steps, or the level is as near to "
        "its original as it gets"
        if run.teacher
        else "nothing is learned: raise train.learning_rate or the steps, or the model knows these answers "
        "already"
    )
    return warning(text, cause)


def end_loss(run: Run) -> Check:
    """Where the loss stands, for information: short or uniform answers end far below the usual range."""
    if not run.losses:
        return unknown("no step yet")
    (low, high), loss = USUAL_LOSS, median(run.losses[-WINDOW:])
    if run.teacher:
        return passed(
            f"{loss:.3g} in the last steps: nats between the level's answers and the original's"
            + _mixed(run.settings)
        )
    if run.preferences:
        return passed(f"{loss:.3g} in the last steps, of train.method {run.settings.method}")
    text = f"{loss:.3g} in the last steps, usual for chats are {low:g} to {high:g}"
    if loss < low:
        return passed(
            text,
            "below is normal for short or uniform answers; else rows are learned by heart: compare with the "
            "loss on held-out rows",
        )
    return passed(
        text, "above is normal for hard or mixed text; else give it more steps" if loss > high else ""
    )


def _mixed(settings: Train) -> str:
    """What else is in the loss."""
    weight = settings.sft_weight
    return f", with {weight:.0%} of the usual loss on what the assistant says" if weight else ""


EVERY_EVAL: Rules = {"finite eval loss": finite_eval_loss, "overfitting": overfitting}
AT_END: Rules = {"falling loss": falling, "end loss": end_loss}
