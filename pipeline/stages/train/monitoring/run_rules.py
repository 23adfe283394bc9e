"""Rules for settings, evaluations and the entire run. Those for every step are in `rules`."""

import math
from collections.abc import Mapping

from pipeline.config.tuners import RATES, Rate, TunerName
from pipeline.core.checks import Check
from pipeline.stages.train.monitoring.monitor import (
    USUAL_LOSS,
    WINDOW,
    Rule,
    Rules,
    Run,
    failure,
    median,
    passed,
    unknown,
    warning,
)

FALLEN = 0.98  # A loss that is not at least 2 % lower has not fallen.
RISEN = 1.02
FEW = 4  # first steps that also count as the start


def hint(key: str, low: float, high: float, cause: str, whose: str = "") -> Rule:
    """Return a rule for a `train` setting usually between `low` and `high`. `whose` names the range if it is
    not the tuner's.
    """

    def rule(run: Run) -> Check:
        value = getattr(run.settings, key)
        usual = whose or run.settings.tuning.called
        text = f"train.{key} is {value:g}, usual for {usual} are {low:g} to {high:g}"
        return passed(text) if low <= value <= high else warning(text, cause)

    return rule


def learning_rate(run: Run) -> Check:
    """Check the peak learning rate."""
    cause = "higher learns fast and forgets, lower may not learn"
    return usual_rate(run, RATES, cause)


def usual_rate(run: Run, rates: Mapping[TunerName, Rate], cause: str, whose: str = "") -> Check:
    """Return the `hint` for the learning rate. A tuner without a range in `rates` has LoRA's."""
    low, high, start = rates.get(run.settings.tuner, rates["lora"])
    return hint("learning_rate", low, high, f"{cause}: {start}", whose)(run)


def rank(run: Run) -> Check:
    """Check the adapter's rank, if the tuner has one."""
    if "r" not in run.settings.tuning.settings:
        return passed(f"{run.settings.tuning.called} have no rank")
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
    """Check the loss on the held-out rows for NaN or Inf."""
    loss = run.evaluations[-1][1]
    if math.isfinite(loss):
        return passed(f"a number in all {len(run.evaluations)} evaluations")
    return failure(
        f"the loss on the held-out rows is {loss}",
        "a forward fault: lower train.learning_rate, or use bfloat16 as train.bnb_4bit_compute_dtype",
        "Q-TRAIN-009",
    )


def overfitting(run: Run) -> Check:
    """Check for an eval loss 2 % above its lowest twice in a row while the training loss is lower than it
    was then.
    """
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


def falling(cause: str) -> Rule:
    """Return a rule that compares the last fifth's loss with the first's, or with that of the first steps,
    because easy tasks are learned early. `cause` is the likely cause if the loss has not fallen.
    """

    def rule(run: Run) -> Check:
        fifth = len(run.losses) // 5
        if fifth < FEW:
            return unknown(f"{len(run.losses)} steps are too few to tell")
        first = max(median(run.losses[:FEW]), median(run.losses[:fifth]))
        last = median(run.losses[-fifth:])
        text = f"from {first:.3g} to {last:.3g} (medians of the first and the last steps)"
        return passed(text) if last < first * FALLEN else warning(text, cause)

    return rule


def end_loss(run: Run) -> Check:
    """Report the loss at the end, for information: short or uniform answers end far below the usual range."""
    if not run.losses:
        return unknown("no step yet")
    low, high = USUAL_LOSS
    loss = median(run.losses[-WINDOW:])
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


EVERY_EVAL: Rules = {"finite eval loss": finite_eval_loss, "overfitting": overfitting}
AT_END: Rules = {
    "falling loss": falling(
        "nothing is learned: raise train.learning_rate or the steps, or the model knows these answers already"
    ),
    "end loss": end_loss,
}
