"""Preference methods, which learn from judged answers: dpo, ipo, kto, orpo and simpo.

No range is usual for their losses and gradients. Learning rates are those of their papers and of TRL's
documentation (5e-7 to 1e-4 with an adapter).
"""

from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import Any, ClassVar

from pipeline.chat.sequences import CHOSEN, REJECTED
from pipeline.config.methods import METHODS, SFT_WEIGHT
from pipeline.config.tuners import RATES as SFT_RATES
from pipeline.config.tuners import Rate, TunerName
from pipeline.core.checks import Check
from pipeline.stages.train.checkpoints import REFERENCE
from pipeline.stages.train.method import Learner, TrainerParts
from pipeline.stages.train.monitoring.monitor import (
    WINDOW,
    History,
    RuleSets,
    median,
    passed,
    unknown,
    warning,
)
from pipeline.stages.train.monitoring.rules import (
    AT_END,
    EVERY_EVAL,
    EVERY_STEP,
    OTHER_LOSSES,
    usual_rate,
    zero_loss,
)
from pipeline.stages.train.monitoring.rules import learning_rate as sft_learning_rate

RATES: Mapping[TunerName, Rate] = {"lora": (5e-7, 1e-4, "2.0e-5 is a good start")}
FALLEN_NATS = 1.0  # nats by which a chosen answer may have become less likely


def learning_rate(run: History) -> Check:
    """Check the peak learning rate: a fraction of chats' usual one, also for a tuner without its own."""
    if run.settings.tuner in SFT_RATES.keys() - RATES.keys():
        return sft_learning_rate(run)
    cause = "a higher one makes the chosen answers less likely too"
    return usual_rate(run, RATES, cause, run.settings.method)


def chosen(run: History) -> Check:
    """Check that chosen answers did not become less likely than at first: the loss of pairs allows it."""
    gains = run.measured("chosen_gain")
    if len(gains) < WINDOW:
        return unknown(f"no reference, or fewer than {WINDOW} steps")
    gain = median(gains[-WINDOW:])
    text = f"log-probability {gain:+.3g} against the reference in the median of {WINDOW} steps"
    if gain >= -FALLEN_NATS:
        return passed(text)
    pulls = SFT_WEIGHT in METHODS[run.settings.method].settings
    return warning(
        text,
        "the chosen answers become less likely, though the rejected ones do so faster: "
        + ("set train.sft_weight (0.2 for example), or " if pulls else "")
        + "lower train.learning_rate",
    )


def end_loss(run: History) -> Check:
    """Report the loss at the end, for information."""
    if not run.losses:
        return unknown("no step yet")
    loss = median(run.losses[-WINDOW:])
    return passed(f"{loss:.3g} in the last steps, of train.method {run.settings.method}")


STEP = {
    **EVERY_STEP,
    **OTHER_LOSSES,
    "zero loss": zero_loss("every pair of the step is told apart entirely: train less", warning),
    "learning rate": learning_rate,
    "chosen answers": chosen,
}
END = {**AT_END, "end loss": end_loss}


class PreferenceLearner(Learner):
    """Method that compares answers, also with the untrained model's if it has such a reference."""

    rules: ClassVar[RuleSets] = RuleSets(STEP, EVERY_EVAL, END)

    def trainer_parts(self, collate: Any, rows: Any, held_out: Any) -> TrainerParts:
        """Return the collators that know both answers, and the trainer with its reference."""
        from pipeline.models.preference_losses import kto_weights
        from pipeline.stages.train.preference.collator import PreferenceCollator
        from pipeline.stages.train.preference.trainer import PreferenceTrainer, Reference

        run = self.run
        method = self.run.settings.method
        reference = None
        if METHODS[method].reference:
            # With a sharded base no process can rely on its own cache, because all must run the layers
            # equally often.
            again = run.settings.shares_base
            reference = Reference(
                run.checkpoints / REFERENCE, run.record, previous=run.previous, keep=run.leads, again=again
            )
        weights = 1.0, 1.0
        if method == "kto":
            roles = list(chain.from_iterable(rows["roles"]))
            weights = kto_weights(roles.count(CHOSEN), roles.count(REJECTED))
        return TrainerParts(
            PreferenceCollator(collate, method, rows),
            PreferenceCollator(collate, method, held_out),
            partial(PreferenceTrainer, reference=reference, weights=weights),
        )

    def figures(self, rows: list[dict[str, Any]], evaluation: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ranking of the held-out pairs (KTO: answers) at the end, with the 95 % interval of the
        share that is ranked correctly (Wilson's, which suits few pairs). Return {} without any.
        """
        from scipy.stats import binomtest

        measures = evaluation.get("measures", {})
        if "accuracy" not in measures:
            return super().figures(rows, evaluation)
        right = round(measures["accuracy"] * evaluation["items"])
        interval = binomtest(right, evaluation["items"]).proportion_ci(method="wilson")
        bounds = {"low": round(float(interval.low), 4), "high": round(float(interval.high), 4)}
        return super().figures(rows, evaluation) | {
            "preferences": {"items": evaluation["items"], "right": right, **measures, **bounds}
        }


LEARNER = PreferenceLearner
