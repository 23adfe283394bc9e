"""Rules that judge a training run, one pure function each, with the usual ranges of LoRA training.

A rule looks at the run up to its newest row and returns a `Check` with the figures, the likely cause and the
remedy. The ranges are those of Axolotl's documentation on monitoring and debugging runs: loss 0.5 to 2.0,
gradient norm 0.1 to 10 with an alarm at 100, learning rate 1e-4 to 3e-4, warm-up 5 to 10 %, weight decay up
to 0.1, rank 8 to 64. Methods with losses other than those of chats have rules of their own next to their
learners.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial

from pipeline.config.tuners import RATES, Rate, TunerName
from pipeline.core.checks import Check
from pipeline.stages.train.monitoring.monitor import (
    USUAL_LOSS,
    WINDOW,
    History,
    Rule,
    Rules,
    failure,
    median,
    passed,
    unknown,
    warning,
)

USUAL_GRADIENT = (0.1, 10.0)
GRADIENT_ALARM = 100.0
SPIKE = 3.0  # times the running median
# And at least this much above it, because near a loss of 0 rows differ by more than their median.
SPIKE_NATS = 0.5
SLOW = 1 / 3  # share of the median speed
SLOW_STEPS = 5
OVERFLOWS = 5  # steps in a row; float16's loss scale finds its size by overflowing a few times
HISTORY = 200  # steps that the usual speed is computed from
FATAL = partial(failure, id="Q-TRAIN-011")  # default verdict on a loss of 0
FALLEN = 0.98  # A loss that is not at least 2 % lower has not fallen.
RISEN = 1.02
FEW = 4  # first steps that also count as the start
SHORT_RUN = 100  # steps
# A short run needs larger steps: the demos, of 20 and 40 steps, learn their task at 5e-4 and 1e-3.
SHORT_RATES: Mapping[TunerName, Rate] = {"lora": (1e-4, 1e-3, "2.0e-4 is a good start")}


# --- steps --------------------------------------------------------------------------------------------------


def finite_loss(run: History) -> Check:
    """Check the training loss for NaN or Inf."""
    loss = run.losses[-1]
    if math.isfinite(loss):
        return passed(f"a number in all {len(run.losses)} steps")
    if len(run.gradients) > 1 and not math.isfinite(run.gradients[-2]):
        return failure(
            f"the loss is {loss}, the gradient before it was {run.gradients[-2]}",
            "a backward fault in the step before: see finite gradient",
            "Q-TRAIN-009",
        )
    sane = "in the first step"
    if len(run.gradients) > 1:
        sane = f"after a sane gradient norm of {run.gradients[-2]:.3g}"
    cause = (
        f"a forward fault: an overflow in the base or in this step's rows ({_rows(run)}): use bfloat16 "
        "as train.bnb_4bit_compute_dtype"
    )
    return failure(f"the loss is {loss} {sane}", cause, "Q-TRAIN-009")


def finite_gradient(run: History) -> Check:
    """Check the gradient for NaN or Inf while the loss is a number."""
    norm = run.gradients[-1]
    # The gradient of a NaN is NaN, which is the fault of the loss.
    if math.isfinite(norm) or not math.isfinite(run.losses[-1]):
        return passed(f"a number in all {len(run.gradients)} steps")
    finding_its_scale = len(run.gradients) < OVERFLOWS or any(map(math.isfinite, run.gradients[-OVERFLOWS:]))
    if run.settings.bnb_4bit_compute_dtype == "float16" and finding_its_scale:
        return passed(f"float16's loss scale overflowed ({norm}) and was lowered")
    cause = (
        "a backward fault: an overflow in the gradients: lower train.learning_rate, or use bfloat16 as "
        "train.bnb_4bit_compute_dtype"
    )
    return failure(
        f"the gradient norm is {norm} under a sane loss of {run.losses[-1]:.3g}", cause, "Q-TRAIN-010"
    )


def zero_loss(cause: str, verdict: Callable[[str, str], Check] = FATAL) -> Rule:
    """Return a rule for a loss of exactly 0, which no text has, with its likely `cause`."""

    def rule(run: History) -> Check:
        if run.losses[-1] != 0.0:
            return passed("never exactly 0")
        if run.newest.get("weightless"):
            return passed("0 only where all chats of a step weigh nothing (train.reward)")
        return verdict("the loss is exactly 0", cause)

    return rule


def trained_tokens(run: History) -> Check:
    """Check that at least one token was trained in the step."""
    if run.newest["trained_tokens"] > 0:
        return passed("every step trains some")
    return failure(
        f"no token is trained in {_rows(run)}",
        "the labels are masked throughout: look at reports/labels.html and run preprocess again",
        "Q-TRAIN-012",
    )


def frozen(run: History) -> Check:
    """Check for a gradient norm of exactly 0: fatal until there has been another, only odd afterwards."""
    if run.gradients[-1] != 0.0:
        return passed("never exactly 0")
    if run.newest.get("weightless"):
        return passed("0 only where all chats of a step weigh nothing (train.reward)")
    if any(run.gradients):
        return warning(
            "the gradient norm is exactly 0",
            "nothing was learned in this step: its trained tokens are certain already, or too small for "
            "float16",
        )
    return failure(
        "the gradient norm is exactly 0 from the start",
        "frozen weights: no adapter matrix gets a gradient: look at train.target_modules",
        "Q-TRAIN-013",
    )


def gradient_alarm(run: History) -> Check:
    """Check for a single gradient norm above 100."""
    norm = run.gradients[-1]
    if not GRADIENT_ALARM < norm < math.inf:
        return passed(f"never above {GRADIENT_ALARM:g}")
    return warning(
        f"gradient norm {norm:.3g}, above {GRADIENT_ALARM:g}",
        f"an odd row ({_rows(run)}) or too high a train.learning_rate",
    )


def gradient_range(run: History, *, of_chats: bool = True) -> Check:
    """Check that the gradient norm's running median is within 0.1 to 10. A low norm is fine if the task is
    learned, and with losses that are not `of_chats`.
    """
    low, high = USUAL_GRADIENT
    usual = median(run.gradients[-WINDOW:])
    loss = median(run.losses[-WINDOW:])
    if len(run.gradients) < WINDOW or math.isnan(usual):
        return unknown(f"fewer than {WINDOW} steps with a gradient")
    text = f"gradient norm {usual:.3g} in the median of {WINDOW} steps, usual are {low:g} to {high:g}"
    if usual > high:
        return warning(
            text, "unstable learning: lower train.learning_rate, or raise train.gradient_accumulation_steps"
        )
    if not of_chats:
        return passed(f"{text} for chats, other ones under {run.settings.method}")
    if usual < low and loss >= USUAL_LOSS[0]:
        return warning(
            f"{text}; the loss is still {loss:.3g}",
            "hardly anything is learned: raise train.learning_rate, or look at train.target_modules",
        )
    return passed(text)


def spike(run: History) -> Check:
    """Check for a loss of three times its running median."""
    before = [loss for loss in run.losses[-2 * WINDOW - 1 : -1] if loss]  # 0 if all its chats have weight 0
    if len(before) < WINDOW:
        return unknown(f"fewer than {WINDOW} steps with a loss")
    loss = run.losses[-1]
    usual = median(before)
    if not (loss > SPIKE * usual and loss > usual + SPIKE_NATS and loss < math.inf):
        return passed(f"no loss above {SPIKE:g} times its running median")
    text = f"loss {loss:.3g}, {loss / usual:.1f} times the median {usual:.3g} of the steps before"
    return warning(
        text, f"odd rows ({_rows(run)}), or too high a train.learning_rate if it does not come down again"
    )


def speed(run: History) -> Check:
    """Check that tokens per second are not below a third of the usual speed."""
    if len(run.speeds) < 2 * SLOW_STEPS:
        return unknown(f"fewer than {2 * SLOW_STEPS} steps")
    now = median(run.speeds[-SLOW_STEPS:])
    usual = median(run.speeds[-SLOW_STEPS - HISTORY : -SLOW_STEPS])
    if now >= usual * SLOW:
        return passed(f"about {usual:.0f} tokens per second")
    text = f"{now:.0f} tokens per second in the last {SLOW_STEPS} steps, {usual:.0f} were usual"
    return warning(
        text,
        "the machine swaps, throttles or serves another process: look at its memory and at what else runs",
    )


def _rows(run: History) -> str:
    """Return the newest step's packed rows in words, for the user to look at."""
    numbers = run.newest["rows"]
    more = " …" if len(numbers) > 4 else ""
    return f"packed rows {', '.join(map(str, numbers[:4]))}{more}"


# --- settings -----------------------------------------------------------------------------------------------


def hint(key: str, low: float, high: float, cause: str, whose: str = "") -> Rule:
    """Return a rule for a `train` setting usually between `low` and `high`. `whose` names the range if it is
    not the tuner's.
    """

    def rule(run: History) -> Check:
        value = getattr(run.settings, key)
        usual = whose or run.settings.tuning.called
        text = f"train.{key} is {value:g}, usual for {usual} are {low:g} to {high:g}"
        return passed(text) if low <= value <= high else warning(text, cause)

    return rule


def learning_rate(run: History) -> Check:
    """Check the peak learning rate."""
    cause = "higher learns fast and forgets, lower may not learn"
    rates = dict(RATES)
    if run.max_steps <= SHORT_RUN:
        rates |= SHORT_RATES
    return usual_rate(run, rates, cause)


def usual_rate(run: History, rates: Mapping[TunerName, Rate], cause: str, whose: str = "") -> Check:
    """Return the `hint` for the learning rate. A tuner without a range in `rates` has LoRA's."""
    low, high, start = rates.get(run.settings.tuner, rates["lora"])
    return hint("learning_rate", low, high, f"{cause}: {start}", whose)(run)


def rank(run: History) -> Check:
    """Check the adapter's rank, if the tuner has one."""
    if "r" not in run.settings.tuning.settings:
        return passed(f"{run.settings.tuning.called} have no rank")
    return hint("r", 8, 64, "less holds little, more costs memory for nothing: set it to 16")(run)


# --- evaluations and the entire run -------------------------------------------------------------------------


def finite_eval_loss(run: History) -> Check:
    """Check the loss on the held-out rows for NaN or Inf."""
    loss = run.evaluations[-1][1]
    if math.isfinite(loss):
        return passed(f"a number in all {len(run.evaluations)} evaluations")
    return failure(
        f"the loss on the held-out rows is {loss}",
        "a forward fault: lower train.learning_rate, or use bfloat16 as train.bnb_4bit_compute_dtype",
        "Q-TRAIN-009",
    )


def overfitting(run: History) -> Check:
    """Check for an eval loss 2 % above its lowest twice in a row, with a training loss lower than then."""
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

    def rule(run: History) -> Check:
        fifth = len(run.losses) // 5
        if fifth < FEW:
            return unknown(f"{len(run.losses)} steps are too few to tell")
        first = max(median(run.losses[:FEW]), median(run.losses[:fifth]))
        last = median(run.losses[-fifth:])
        text = f"from {first:.3g} to {last:.3g} (medians of the first and the last steps)"
        return passed(text) if last < first * FALLEN else warning(text, cause)

    return rule


def end_loss(run: History) -> Check:
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


# --- rules of supervised training ---------------------------------------------------------------------------

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
EVERY_STEP: Rules = {
    "finite loss": finite_loss,
    "finite gradient": finite_gradient,
    "zero loss": zero_loss(
        "a masking or packing fault: nothing is trained, or a row sees its own answer: look at "
        "reports/labels.html"
    ),
    "trained tokens": trained_tokens,
    "zero gradient": frozen,
    "gradient alarm": gradient_alarm,
    "gradient range": gradient_range,
    "loss spike": spike,
    "speed": speed,
    **SETTINGS,
}
# It replaces the rule for chats.
OTHER_LOSSES: Rules = {"gradient range": partial(gradient_range, of_chats=False)}
EVERY_EVAL: Rules = {"finite eval loss": finite_eval_loss, "overfitting": overfitting}
AT_END: Rules = {
    "falling loss": falling(
        "nothing is learned: raise train.learning_rate or the steps, or the model knows these answers already"
    ),
    "end loss": end_loss,
}
